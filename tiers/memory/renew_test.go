package memory

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// arenaPath is a place for an arena whose memory can be lent.
func arenaPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cascade-memory-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "arena")
}

// reader has referred to the first bytes of a block and not read them yet.
type reader struct {
	pipe *os.File
	want []byte
}

// refer lends a block and has a reader refer to it.
func refer(t *testing.T, tr *Tier, id block.ID) reader {
	t.Helper()
	p, err := tr.Pin(id)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if !p.ZeroCopy() {
		t.Fatal("a block of whole huge pages is not lent")
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r := reader{os.NewFile(uintptr(fds[0]), "pipe"), bytes.Clone(p.Bytes()[:32<<10])}
	t.Cleanup(func() { r.pipe.Close() })
	v := unix.Iovec{Base: &p.Bytes()[0]}
	v.SetLen(len(r.want))
	n, err := unix.Vmsplice(fds[1], []unix.Iovec{v}, 0)
	if err != nil || n != len(r.want) {
		t.Fatal(n, err)
	}
	unix.Close(fds[1])
	return r
}

func (r reader) check(t *testing.T) {
	t.Helper()
	got, err := io.ReadAll(r.pipe)
	if err != nil || !bytes.Equal(got, r.want) {
		t.Errorf("what a late reader got is not what was lent (%d bytes, %v)", len(got), err)
	}
}

// TestLentMemoryIsNotWritten: blocks are lent, go, and others take all the room
// that they had, in the same process or a later one. In the end all of it is there.
func TestLentMemoryIsNotWritten(t *testing.T) {
	const size, one = 32 << 20, 2 << 20
	evict := func(t *testing.T, tr *Tier, items []tiers.Item) {
		t.Helper()
		for _, it := range items {
			if err := tr.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := func(t *testing.T, tr *Tier, path string) *Tier {
		t.Helper()
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		return openAll(t, path, size)
	}
	for name, change := range map[string]func(t *testing.T, tr *Tier, path string, items []tiers.Item) *Tier{
		"evicted": func(t *testing.T, tr *Tier, _ string, items []tiers.Item) *Tier {
			evict(t, tr, items)
			return tr
		},
		"evicted by the next process": func(t *testing.T, tr *Tier, path string, items []tiers.Item) *Tier {
			tr = next(t, tr, path)
			wantBytes(t, tr, items)
			evict(t, tr, items)
			return tr
		},
		"evicted just before the end": func(t *testing.T, tr *Tier, path string, items []tiers.Item) *Tier {
			tr.mu.Lock()
			tr.mu.closed = true // nothing gets new memory any more
			for _, it := range items {
				tr.withdrawLocked(tr.slots[it.Info.ID])
			}
			if len(tr.mu.lent) != len(items) {
				t.Errorf("%d rooms are lent, want %d", len(tr.mu.lent), len(items))
			}
			tr.mu.closed = false
			tr.mu.lent = nil
			tr.mu.Unlock()
			return next(t, tr, path)
		},
		"held when it was evicted": func(t *testing.T, tr *Tier, _ string, items []tiers.Item) *Tier {
			held := true
			tr.Watch(func(int64) bool { return held })
			evict(t, tr, items)
			held = false
			tr.Settle()
			return tr
		},
		"pinned when it was withdrawn": func(t *testing.T, tr *Tier, _ string, items []tiers.Item) *Tier {
			for _, it := range items {
				p, err := tr.Pin(it.Info.ID)
				if err != nil {
					t.Fatal(err)
				}
				tr.mu.Lock()
				tr.withdrawLocked(tr.slots[it.Info.ID])
				tr.mu.Unlock()
				p.Release()
			}
			return tr
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := arenaPath(t)
			tr := openAll(t, path, size)
			items := fill(t, tr, one)
			if len(items) < 12 {
				t.Fatalf("%d blocks of %d bytes fit in %d", len(items), one, size)
			}
			var late []reader
			for _, it := range items {
				late = append(late, refer(t, tr, it.Info.ID))
			}
			tr = change(t, tr, path, items)
			others := fill(t, tr, one-4096) // as rooms come back, so with records between them
			if len(others) < len(items)/2 {
				t.Errorf("%d blocks fit where %d were", len(others), len(items))
			}
			for _, r := range late {
				r.check(t)
			}
			evict(t, tr, others)
			again := fill(t, tr, one)
			for end := time.Now().Add(time.Minute); len(again) < len(items) && time.Now().Before(end); again = fill(t, tr, one) {
				evict(t, tr, again) // rooms come back in the background
			}
			if len(again) < len(items) {
				t.Errorf("%d blocks fit at last, %d at first", len(again), len(items))
			}
			if tr.mu.alloc.IsLent(0, size) {
				t.Error("memory is lent still that is new")
			}
		})
	}
}

// TestRenewalIsInNobodysWay: lent rooms wait for their new memory while others
// ask for room, as long as there is other room.
func TestRenewalIsInNobodysWay(t *testing.T) {
	const one = 2 << 20
	tr := openAll(t, arenaPath(t), 32<<20)
	close(tr.stop) // nobody renews but this test
	tr.workers.Wait()
	tr.stop = make(chan struct{})
	items := fill(t, tr, one)
	asked := uint64(0)
	renew := func(what string, want time.Duration, left int) {
		t.Helper()
		if pause := tr.renewSome(&asked); pause != want || len(tr.mu.lent) != left {
			t.Errorf("%s: %d rooms are lent still, the next look is in %v; want %d, %v", what, len(tr.mu.lent), pause, left, want)
		}
	}
	drop := func(items []tiers.Item) {
		for _, it := range items {
			if refer(t, tr, it.Info.ID); tr.Evict(it.Info.ID) != nil {
				t.Fatal("not evicted")
			}
		}
	}
	drop(items[:2])
	renew("no room is free", 0, 0)
	drop(items[2:4])
	for range 3 {
		s, err := tr.Reserve(one)
		if err != nil {
			t.Fatal(err)
		}
		s.Abort()
		renew("somebody asked", renewQuiet, 2)
	}
	renew("nobody asked since", 0, 0)
	drop(items[4:6])
	var all []tiers.Slot
	for range 6 {
		s, err := tr.Reserve(one)
		if err != nil {
			t.Fatalf("after %d: %v", len(all), err)
		}
		all = append(all, s)
	}
	if len(tr.mu.lent) != 0 {
		t.Errorf("%d rooms are lent still, and the tier is full", len(tr.mu.lent))
	}
	for _, s := range all {
		s.Abort()
	}
}

// TestLentBlocksStay: no block that is lent is moved, and others written in its
// place at once, to make room for a larger one.
func TestLentBlocksStay(t *testing.T) {
	const size, one = 32 << 20, 2 << 20
	tr := openAll(t, arenaPath(t), size)
	items := fill(t, tr, one)
	places := map[block.ID]tiers.Place{}
	for i, it := range items {
		if i%2 == 0 {
			refer(t, tr, it.Info.ID)
			places[it.Info.ID] = placeOf(t, tr, it.Info.ID)
		} else if err := tr.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		if s, err := tr.Reserve(3 << 20); err == nil {
			s.Abort()
		}
	}
	if moved := wantPlaces(t, tr, places); moved > 0 {
		t.Errorf("%d blocks that are lent were moved", moved)
	}
}

// TestNothingElseIsLent: blocks that share their pages with others, and memory that
// cannot be replaced, are to be copied.
func TestNothingElseIsLent(t *testing.T) {
	tr := openAll(t, arenaPath(t), 32<<20)
	anonymous := openAll(t, "", 32<<20)
	for name, c := range map[string]struct {
		tier *Tier
		size int
	}{"a small block": {tr, 64 << 10}, "one of 3 MiB": {tr, 3 << 20}, "no file": {anonymous, 2 << 20}} {
		t.Run(name, func(t *testing.T) {
			it := testItem(1, c.size)
			if err := c.tier.Put(t.Context(), it); err != nil {
				t.Fatal(err)
			}
			p, err := c.tier.Pin(it.Info.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			if p.ZeroCopy() {
				t.Error("is lent")
			}
		})
	}
}
