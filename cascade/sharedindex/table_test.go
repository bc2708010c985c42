package sharedindex

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/names"
	"cascadekv/internal/shmindex"
	"cascadekv/internal/testing/parttest"
)

// A shared index shows what it was given until that is removed, whatever other
// index had the name before.
func TestSharedIndexIsWhatWasSet(t *testing.T) {
	all := parttest.Names(40)
	older, x := sharedIndexOf(t, 1, 64), sharedIndexOf(t, 2, 64)
	for i := range all {
		older.Set(all[len(all)-1-i], shmindex.Entry{Kind: shmindex.Here, Size: 1})
	}
	for i, n := range all {
		if !x.Set(n, shmindex.Entry{Kind: shmindex.Here, Size: uint32(100 + i)}) {
			t.Fatalf("full with %d names", i)
		}
	}
	for i, n := range all {
		switch i % 3 {
		case 0:
			x.Remove(n)
			x.Remove(n)
		case 1:
			x.Set(n, shmindex.Entry{Kind: shmindex.Here, Size: uint32(200 + i)})
		}
	}
	for i, n := range all {
		e, ok := parttest.EntryOf(x.Table, n)
		if want := uint32(100 + i); ok != (i%3 != 0) || ok && e.Size != want && e.Size != want+100 {
			t.Errorf("name %d: shown %v as %+v", i, ok, e)
		}
		touch := 2<<32 | uint64(n.Slot)
		if got := x.Touched(touch); (got == n) != ok {
			t.Errorf("name %d is shown: %v, its place is of %v", i, ok, got)
		}
		if x.Touched(1<<32|uint64(n.Slot)) != nil {
			t.Error("a touch of another table counts")
		}
	}
}

func TestSharedIndexIsFull(t *testing.T) {
	all := parttest.Names(10_000)
	x := sharedIndexOf(t, 1, 64)
	if !slices.ContainsFunc(all, func(n *names.Name) bool { return !x.Set(n, shmindex.Entry{Kind: shmindex.Here}) }) {
		t.Error("a table of 64 names has room for 10,000")
	}
}

func sharedIndexOf(t *testing.T, number uint64, room int) *Table {
	t.Helper()
	x, err := NewTable(shmindex.Options{Names: room, Number: number})
	if err != nil {
		t.Skip("no shared memory: ", err)
	}
	t.Cleanup(func() { x.Table.Close() })
	if fd, _, err := x.Table.File(); err == nil {
		_ = unix.Close(fd)
	}
	return x
}
