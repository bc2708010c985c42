package others

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
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
