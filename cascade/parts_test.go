package cascade

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/names"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// graphOf returns a graph with so many names, and the names.
func graphOf(n int) (*names.Graph, []*names.Name) {
	g := names.New(0)
	var all []*names.Name
	for i := range n {
		all = append(all, g.Put(block.Name{Namespace: "ns", Key: fmt.Sprint(i)}, false, &newBlock(block.Info{}).Block, time.Now()))
	}
	return g, all
}

func TestPublishQueueHasEachNameOnce(t *testing.T) {
	_, all := graphOf(5)
	q := newPublishQueue()
	for _, i := range []int{3, 1, 3, 0, 1} {
		q.add(all[i])
	}
	if len(q.wake) != 1 {
		t.Error("the publisher is not woken")
	}
	var got []string
	take := func(most int) {
		got = nil
		q.take(most, func(n *names.Name) { got = append(got, n.Key()) })
	}
	if take(2); !slices.Equal(got, []string{"3", "1"}) {
		t.Errorf("took %v", got)
	}
	q.add(all[3]) // changed again
	q.add(all[0])
	if take(9); !slices.Equal(got, []string{"0", "3"}) {
		t.Errorf("took %v", got)
	}
	if take(9); got != nil || q.names != nil {
		t.Errorf("took %v of nothing", got)
	}
}

// A shared index shows what it was given until that is removed, whatever other
// index had the name before.
func TestSharedIndexIsWhatWasSet(t *testing.T) {
	_, all := graphOf(40)
	older, x := sharedIndexOf(t, 1, 64), sharedIndexOf(t, 2, 64)
	for i := range all {
		older.set(all[len(all)-1-i], shmindex.Entry{Kind: shmindex.Here, Size: 1})
	}
	for i, n := range all {
		if !x.set(n, shmindex.Entry{Kind: shmindex.Here, Size: uint32(100 + i)}) {
			t.Fatalf("full with %d names", i)
		}
	}
	for i, n := range all {
		switch i % 3 {
		case 0:
			x.remove(n)
			x.remove(n)
		case 1:
			x.set(n, shmindex.Entry{Kind: shmindex.Here, Size: uint32(200 + i)})
		}
	}
	for i, n := range all {
		e, ok := x.entry(n)
		if want := uint32(100 + i); ok != (i%3 != 0) || ok && e.Size != want && e.Size != want+100 {
			t.Errorf("name %d: shown %v as %+v", i, ok, e)
		}
		touch := 2<<32 | uint64(n.Slot)
		if got := x.touched(touch); (got == n) != ok {
			t.Errorf("name %d is shown: %v, its place is of %v", i, ok, got)
		}
		if x.touched(1<<32|uint64(n.Slot)) != nil {
			t.Error("a touch of another table counts")
		}
	}
}

func TestSharedIndexIsFull(t *testing.T) {
	_, all := graphOf(10_000)
	x := sharedIndexOf(t, 1, 64)
	if !slices.ContainsFunc(all, func(n *names.Name) bool { return !x.set(n, shmindex.Entry{Kind: shmindex.Here}) }) {
		t.Error("a table of 64 names has room for 10,000")
	}
}

func sharedIndexOf(t *testing.T, number uint64, room int) *sharedIndex {
	t.Helper()
	x, err := newSharedIndex(shmindex.Options{Names: room, Number: number})
	if err != nil {
		t.Skip("no shared memory: ", err)
	}
	t.Cleanup(func() { x.table.Close() })
	if fd, _, err := x.table.File(); err == nil {
		_ = unix.Close(fd)
	}
	return x
}
