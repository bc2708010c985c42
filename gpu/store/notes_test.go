package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// book is a user's notes: each sets a key, or, with no value, removes it.
type book struct {
	t       *testing.T
	is      map[string]string
	pending [][]byte
	asked   int // of pending, those that the store asked for
	lost    bool
	whole   int // logs that were written anew
	during  func()
}

func newBook(t *testing.T) *book { return &book{t: t, is: map[string]string{}} }

func (b *book) Reset() { clear(b.is) }

func (b *book) Replay(p []byte) { b.apply(string(p)) }

func (b *book) apply(note string) {
	key, value, _ := strings.Cut(note, "=")
	if b.is[key] = value; value == "" {
		delete(b.is, key)
	}
}

// set is what the user does.
func (b *book) set(key, value string) {
	b.apply(key + "=" + value)
	b.pending = append(b.pending, []byte(key+"="+value))
}

func (b *book) Pending() ([][]byte, bool) {
	b.asked = len(b.pending)
	return b.pending, !b.lost
}

func (b *book) All(fn func([][]byte) error) error {
	if b.during != nil {
		b.during()
	}
	b.asked = len(b.pending)
	for key, value := range b.is {
		if err := fn([][]byte{[]byte(key + "=" + value)}); err != nil {
			return err
		}
	}
	b.whole++
	b.lost = false
	return nil
}

func (b *book) Written() { b.pending = b.pending[b.asked:] }

// TestNotes: what was written last is there after a restart, by Sync, by a put and by Close, in a log that has
// grown and in one that is written anew.
func TestNotes(t *testing.T) {
	_, h, o := rig(t, 2, small, 4, 8)
	b := newBook(t)
	o.Notes = b
	want := map[string]string{}
	set := func(key, value string) {
		b.set(key, value)
		if want[key] = value; value == "" {
			delete(want, key)
		}
	}
	again := func(s *Store) *Store {
		t.Helper()
		closeStore(t, s)
		if len(b.pending) > 0 {
			t.Fatalf("%d notes are not written", len(b.pending))
		}
		b.is = map[string]string{"stale": "1"}
		s = open(t, o)
		if fmt.Sprint(b.is) != fmt.Sprint(want) {
			t.Fatalf("%v, want %v", b.is, want)
		}
		return s
	}
	s := open(t, o)
	set("a", "1")
	set("b", "2")
	if err := s.Sync(t.Context()); err != nil || len(b.pending) > 0 {
		t.Fatal(err, b.pending)
	}
	s = again(s)
	set("a", "")
	set("c", strings.Repeat("x", MaxNote-2))
	h.mustStore(t, s, ids(0, 2))
	if len(b.pending) > 0 {
		t.Error("a put did not take the notes along")
	}
	set("b", "4")
	s = again(s)
	if s.Has(ids(0, 2)) != 2 {
		t.Error("the blocks are gone")
	}
	whole := b.whole
	for i := range 2000 {
		set("d", fmt.Sprint(i, strings.Repeat("y", 2000)))
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if b.whole == whole || s.Stats().LogBytes > 2*logSlack {
		t.Errorf("the log has %d bytes and was written anew %d times", s.Stats().LogBytes, b.whole-whole)
	}
	s = again(s)
	set("e", "5")
	b.pending, b.lost = nil, true // too many for the user
	whole = b.whole
	if err := s.Sync(t.Context()); err != nil || b.whole != whole+1 {
		t.Errorf("%v, written anew %d times", err, b.whole-whole)
	}
	s = again(s)
	closeStore(t, s)
	o.ContainerFiles = 2 // another pool
	b.is["stale"] = "1"
	open(t, o)
	if len(b.is) > 0 {
		t.Errorf("notes of another pool: %v", b.is)
	}
}

// TestFailedNotes: notes whose write failed are written later.
func TestFailedNotes(t *testing.T) {
	disk, _, o := rig(t, 1, small, 4, 4)
	fs := vfstest.NewFault(disk)
	b := newBook(t)
	o.Notes, o.FS = b, fs
	s := open(t, o)
	b.set("a", "1")
	b.set("b", "2")
	b.set("a", "")
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: logPrefix, Bytes: 30, Err: vfs.ErrNoSpace})
	for range 2 {
		if err := s.Sync(t.Context()); !errors.Is(err, tiers.ErrFull) || len(b.pending) != 3 {
			t.Errorf("%v, %d pending", err, len(b.pending))
		}
	}
	fs.Clear()
	if err := s.Sync(t.Context()); err != nil || len(b.pending) != 0 {
		t.Errorf("%v, %d pending", err, len(b.pending))
	}
	closeStore(t, s)
	open(t, o)
	if len(b.is) != 1 || b.is["b"] != "2" {
		t.Errorf("%v", b.is)
	}
}

// TestFailedRenewal: a log that is too long and can not be written anew is written on, and what comes meanwhile is
// not taken for written.
func TestFailedRenewal(t *testing.T) {
	disk, _, o := rig(t, 1, small, 4, 4)
	fs := vfstest.NewFault(disk)
	b := newBook(t)
	o.Notes, o.FS = b, fs
	s := open(t, o)
	for s.log.size <= 2*logSlack {
		b.set("long", strings.Repeat("x", MaxNote-5))
		noError(t, s.Sync(t.Context()))
		if s.head.generation > 1 {
			t.Fatal("it was written anew before it was too long")
		}
		if s.log.size > logSlack+4*s.shortest() {
			break
		}
	}
	fs.Add(vfstest.Rule{Op: vfs.OpRename, Path: unfinished, Err: vfs.ErrNoSpace})
	b.set("before", "1")
	b.during = func() { b.set("during", fmt.Sprint(b.whole)) }
	noError(t, s.Sync(t.Context()))
	b.during = nil
	fs.Clear()
	after := newBook(t)
	o.FS, o.Notes = disk.After(vfstest.CutProcess, 1), after
	open(t, o)
	for key, want := range b.is {
		written := !slices.ContainsFunc(b.pending, func(p []byte) bool { return strings.HasPrefix(string(p), key+"=") })
		if got := after.is[key]; written && got != want {
			t.Errorf("%s was taken for written, and is %q", key, got)
		}
	}
	if after.is["before"] != "1" {
		t.Error("what was pending before is not written")
	}
}

// TestNotesCrash ends the process or the power before any operation: what is found is what there was after some
// note, one that the last Sync had seen or a later one. So nothing that was removed is back.
func TestNotesCrash(t *testing.T) {
	for seed := range uint64(4) {
		fs, h, o := rig(t, 1, small, 4, 4)
		b := newBook(t)
		rnd := rand.New(rand.NewPCG(seed, 8))
		type moment struct {
			fs     *vfstest.Crash
			what   string
			states []string // that are right
		}
		var moments []moment
		states, armed := []string{fmt.Sprint(b.is)}, false
		o.Notes = b
		o.FS = fs.Watch(func(c vfs.Call) {
			if !armed || c.Op == vfs.OpRead || !strings.Contains(c.Path, logPrefix) || rnd.IntN(4) > 0 {
				return
			}
			for cut, name := range map[vfstest.Cut]string{vfstest.CutProcess: "process", vfstest.CutPower: "power"} {
				moments = append(moments, moment{fs.After(cut, rnd.Uint64()), fmt.Sprintf("seed %d, %s before %s", seed, name, c.Op), slices.Clone(states)})
			}
		})
		s := open(t, o)
		armed = true
		for i := range 120 {
			for range 1 + rnd.IntN(3) {
				value := fmt.Sprint(i)
				if rnd.IntN(2) == 0 {
					value = ""
				}
				b.set(fmt.Sprint("k", rnd.IntN(4)), value)
				states = append(states, fmt.Sprint(b.is))
			}
			if rnd.IntN(10) == 0 {
				b.pending, b.lost = nil, true
			}
			var err error
			if rnd.IntN(4) == 0 {
				s.Remove(ids(i-1, 1)[0])
				h.mustStore(t, s, ids(i, 1))
				s.Remove(ids(i, 1)[0])
			} else if err = s.Sync(context.Background()); err != nil {
				t.Fatal(err)
			} else {
				states = states[len(states)-1:]
			}
		}
		armed = false
		closeStore(t, s)
		for _, m := range moments {
			found := newBook(t)
			o.FS, o.Notes = m.fs, found
			s := open(t, o)
			if !slices.Contains(m.states, fmt.Sprint(found.is)) {
				t.Fatalf("%s: %v, want one of %v", m.what, found.is, m.states)
			}
			closeStore(t, s)
		}
		if len(moments) < 50 {
			t.Errorf("%d moments", len(moments))
		}
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
