package cascade

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	dirlease "cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// patience bounds waits for what the background does soon.
const patience = 30 * time.Second

// settled waits until the background holds no view and returns what there is
// then.
func (r *rig) settled() Stats {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		st := r.Stats()
		if st.Views == 0 && st.PendingIDs == 0 {
			return st
		}
		if time.Now().After(end) {
			r.t.Fatalf("views and pending ids do not end: %+v", st)
		}
	}
}

// watched calls step around every change of the records of a memory tier.
type watched struct {
	tiers.Memory
	step func()
}

func (w watched) around(change func() error) error {
	w.step()
	err := change()
	w.step()
	return err
}

func (w watched) Link(id block.ID, n block.Name) error {
	return w.around(func() error { return w.Memory.Link(id, n) })
}

func (w watched) Unlink(id block.ID, n block.Name) error {
	return w.around(func() error { return w.Memory.Unlink(id, n) })
}

func (w watched) Evict(id block.ID) error {
	return w.around(func() error { return w.Memory.Evict(id) })
}

func (w watched) Rename(old, new block.ID) error {
	return w.around(func() error { return w.Memory.Rename(old, new) })
}

const smallArena = 4 << 20

// openOver opens a store over an arena file and, when dir is not empty, a
// lustre directory.
func openOver(t *testing.T, arena, dir string, step func()) *rig {
	t.Helper()
	m, err := shm.Open(arena, smallArena)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(context.Background()); err != nil {
		t.Fatal(err)
	}
	o := Options{Memory: []tiers.Memory{m}, Log: slog.New(slog.DiscardHandler)}
	if step != nil {
		o.Memory[0] = watched{m, step}
	}
	if dir != "" {
		if o.Cold, err = lustre.Open(lustre.Options{Dir: dir, Process: dirlease.Killed()}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return &rig{t: t, Store: s}
}

// TestReplacedNameIsAlwaysOnRecord ends the process at every change of a
// record while an acknowledged name moves from one block to another.
func TestReplacedNameIsAlwaysOnRecord(t *testing.T) {
	old, fresh := data(1, 3000), data(2, 5000)
	for name, c := range map[string]struct {
		before func(r *rig)
		move   func(r *rig)
		want   [][]byte
	}{
		"new bytes": {
			func(r *rig) { r.put(ns("k"), old) },
			func(r *rig) { r.put(ns("k"), fresh) },
			[][]byte{old, fresh},
		},
		"bytes that another name has": {
			func(r *rig) { r.put(ns("k"), old); r.put(ns("other"), fresh) },
			func(r *rig) { r.put(ns("k"), fresh) },
			[][]byte{old, fresh},
		},
		"the same bytes": {
			func(r *rig) { r.put(ns("k"), old) },
			func(r *rig) { r.put(ns("k"), old) },
			[][]byte{old},
		},
		"completed to a block that is there": {
			func(r *rig) {
				r.put(ns("first"), old)
				if err := r.stage(ns("k"), old); err != nil {
					r.t.Fatal(err)
				}
			},
			func(r *rig) { r.settled() },
			[][]byte{old},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			arena := filepath.Join(dir, "a.arena")
			watching := false
			var images [][]byte
			r := openOver(t, arena, "", func() {
				if !watching {
					return
				}
				image, err := os.ReadFile(arena)
				if err != nil {
					t.Error(err)
				}
				images = append(images, image)
			})
			r.Store.state.Activity.Begin() // the completer waits
			c.before(r)
			r.Store.state.Mu.Lock()
			watching = true
			r.Store.state.Mu.Unlock()
			r.Store.state.Activity.End()
			c.move(r)
			r.Store.state.Mu.Lock()
			watching = false
			r.Store.state.Mu.Unlock()
			if len(images) < 2 {
				t.Fatalf("%d changes were seen", len(images))
			}
			for i, image := range images {
				path := filepath.Join(t.TempDir(), "a.arena")
				if err := os.WriteFile(path, image, 0o600); err != nil {
					t.Fatal(err)
				}
				next := openOver(t, path, "", nil)
				next.wantOneOf(fmt.Sprintf("step %d of %d", i, len(images)), "k", c.want)
				next.Close(context.Background())
			}
		})
	}
}

func (r *rig) wantOneOf(when, key string, want [][]byte) {
	r.t.Helper()
	v, err := r.Get(context.Background(), "ns", key)
	if err != nil {
		r.t.Errorf("%s: %q: %v", when, key, err)
		return
	}
	defer v.Release()
	for _, w := range want {
		if string(v.Bytes()) == string(w) {
			return
		}
	}
	r.t.Errorf("%s: %q has wrong bytes", when, key)
}

// TestStaleRecordDoesNotTakeTheNewOneAlong: an arena from before an overwrite
// meets a cold tier that has it. Withdrawing the stale record must leave the
// younger one.
func TestStaleRecordDoesNotTakeTheNewOneAlong(t *testing.T) {
	dir, cold := t.TempDir(), t.TempDir()
	arena, stale := filepath.Join(dir, "a.arena"), filepath.Join(dir, "stale.arena")
	old, fresh := data(1, 3000), data(2, 5000)
	drain := func(r *rig) {
		if _, err := r.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	r := openOver(t, arena, cold, nil)
	r.put(ns("k"), old)
	r.put(ns("keeps the block"), old)
	drain(r)
	image, err := os.ReadFile(arena)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, image, 0o600); err != nil {
		t.Fatal(err)
	}
	r.put(ns("k"), fresh)
	drain(r)
	r.Close(context.Background())

	r = openOver(t, stale, cold, nil)
	r.want("k", fresh)
	r.Close(context.Background())
	r = openOver(t, filepath.Join(dir, "empty.arena"), cold, nil)
	r.want("k", fresh)
	r.want("keeps the block", old)
}

// slow is a cold tier that keeps names in mind until it is told to sync.
type slow struct {
	tiers.Files
	synced chan struct{}
}

func (s slow) Sync(context.Context) error {
	s.synced <- struct{}{}
	return nil
}

// TestWithdrawnNamesDoNotWaitForAWrite: nothing else is put after the delete.
func TestWithdrawnNamesDoNotWaitForAWrite(t *testing.T) {
	cold := slow{synced: make(chan struct{}, 100)}
	r := newRig(t, 8<<20, true)
	r.Store.Close(context.Background())
	cold.Files = r.cold
	r.cold = cold
	r.open()
	p := data(1, 2000)
	drainSyncs := func() int {
		if _, err := r.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		return len(cold.synced)
	}
	r.put(ns("a"), p)
	if n := drainSyncs(); n != 0 {
		t.Errorf("%d syncs with no name told beside a block", n)
	}
	r.put(ns("b"), p)
	if n := drainSyncs(); n != 1 {
		t.Fatalf("a drain with a name waiting: %d syncs, want 1", n)
	}
	<-cold.synced
	r.Delete(context.Background(), "ns", "a")
	select {
	case <-cold.synced:
	case <-time.After(patience):
		t.Fatal("the withdrawal waits for ever")
	}
}

// TestEvictionWaitsForTheNames: a name moves to a block that the cold tier has,
// and that block leaves memory, with the only record of the name, before
// anything else is written.
func TestEvictionWaitsForTheNames(t *testing.T) {
	dir, cold := t.TempDir(), t.TempDir()
	arena := filepath.Join(dir, "a.arena")
	old, fresh := data(1, 3000), data(2, 5000)
	r := openOver(t, arena, cold, nil)
	res := r.put(ns("first"), fresh)
	r.put(ns("k"), old)
	if _, err := r.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.stage(ns("k"), fresh); err != nil {
		t.Fatal(err)
	}
	if st := r.settled(); st.Names != 2 || st.Blocks != 1 {
		t.Fatalf("not merged: %+v", st)
	}
	r.wantEvicted(res.ID)

	crashedArena, crashedCold := filepath.Join(dir, "crashed.arena"), t.TempDir()
	image, err := os.ReadFile(arena)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(crashedArena, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(crashedCold, os.DirFS(cold)); err != nil {
		t.Fatal(err)
	}
	next := openOver(t, crashedArena, crashedCold, nil)
	next.want("k", fresh)
	next.want("first", fresh)
}

// wantEvicted makes the last memory tier give up a block.
func (r *rig) wantEvicted(id BlockID) {
	r.t.Helper()
	resident := func() bool {
		r.Store.state.Mu.Lock()
		defer r.Store.state.Mu.Unlock()
		return r.state.Mu.Blocks[id].In(r.state.Last().Index)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for resident() {
		if err := r.evict.EvictOne(ctx, r.state.Last(), eviction.AnyBlock); err != nil {
			r.t.Fatal(err)
		}
	}
}
