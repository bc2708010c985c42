package sharedindex

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// graphOf returns a graph with so many names, and the names.
func graphOf(n int) (*names.Graph, []*names.Name) {
	g := names.New(0)
	var all []*names.Name
	for i := range n {
		all = append(all, g.Put(block.Name{Namespace: "ns", Key: fmt.Sprint(i)}, false, &residency.NewBlock(block.Info{}).Block, time.Now()))
	}
	return g, all
}

// A shared index shows what it was given until that is removed, whatever other
// index had the name before.
func TestSharedIndexIsWhatWasSet(t *testing.T) {
	_, all := graphOf(40)
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
		e, ok := entryOf(x, n)
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
	_, all := graphOf(10_000)
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

// entryOf is what the index says of a name.
func entryOf(x *Table, n *names.Name) (shmindex.Entry, bool) {
	fd, _, err := x.Table.File()
	if err != nil {
		return shmindex.Entry{}, false
	}
	defer unix.Close(fd)
	r, err := shmindex.OpenReader(fd)
	if err != nil {
		return shmindex.Entry{}, false
	}
	defer r.Close()
	e, _, ok := r.Lookup(shmindex.FingerprintOf(n.Namespace(), n.Key()))
	return e, ok
}
