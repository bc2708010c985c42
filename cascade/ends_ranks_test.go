package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
)

// leave ends a rank, and has the others know that it is gone.
func (j *job) leave(rank int) {
	j.t.Helper()
	r := j.ranks[rank]
	if err := r.node.Close(); err != nil {
		j.t.Error(err)
	}
	if err := r.Close(context.Background()); err != nil {
		j.t.Error(err)
	}
	gone := dht.Member{Rank: fabric.Rank(rank), Incarnation: 1 + j.again[rank], State: fabric.Gone}
	for i, one := range j.ranks {
		if i != rank {
			one.node.SetMembers(gone)
		}
	}
}

// comeBack begins a rank anew that left, with nothing in memory.
func (j *job) comeBack(rank int) {
	j.t.Helper()
	if j.again == nil {
		j.again = map[int]uint64{}
	}
	j.again[rank]++
	all := j.members()
	j.ranks[rank] = j.start(fabric.Rank(rank), all[rank].Incarnation, 8<<20)
	for i, one := range j.ranks {
		if i == rank {
			one.node.SetMembers(all...)
		} else {
			one.node.SetMembers(all[rank])
		}
	}
	j.settle()
}

// settleWithout is settle while a rank is away.
func (j *job) settleWithout(rank int) {
	j.t.Helper()
	away := j.ranks[rank]
	j.ranks = append(append([]*jobRank{}, j.ranks[:rank]...), j.ranks[rank+1:]...)
	j.settle()
	j.ranks = append(append(append([]*jobRank{}, j.ranks[:rank]...), away), j.ranks[rank:]...)
}

// TestWhatEndedHidesWhatAnAbsentRankHas: while a rank is away its names are put anew, with an
// end, or end, or are deleted, and it comes back when that is over: with what it had, which
// nobody serves.
func TestWhatEndedHidesWhatAnAbsentRankHas(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("catalogue ", local), func(t *testing.T) {
			t.Parallel()
			whatEndedHides(t, threeRanks(t, local))
		})
	}
}

func whatEndedHides(t *testing.T, j *job) {
	const each = 8
	key := func(kind string, i int) string { return fmt.Sprint(kind, i) }
	a, c := j.ranks[0], j.ranks[2]
	for i := range each {
		for _, kind := range []string{"ends", "lasts", "deleted", "left"} {
			j.ranks[1].putKey(t, key(kind, i), data(uint64(i), 5000))
		}
	}
	j.drainAll(1)
	j.leave(1)
	for i := range each {
		e := ns(key("ends", i))
		e.Expires = time.Now().Add(3 * time.Second)
		if _, err := c.Put(t.Context(), e, data(uint64(100+i), 5000), nil); err != nil {
			t.Fatal(err)
		}
		c.putKey(t, key("lasts", i), data(uint64(100+i), 5000))
		c.putKey(t, key("deleted", i), data(uint64(100+i), 5000))
		c.Delete(t.Context(), "ns", key("deleted", i))
	}
	j.settleWithout(1)
	for i := range each {
		a.wantAt(t, key("lasts", i), data(uint64(100+i), 5000))
	}
	j.late.Add(int64(3 * time.Second))
	c.Sweep()
	j.settleWithout(1)
	for i := range each {
		for _, r := range []*jobRank{a, c} {
			r.wantMiss(t, key("ends", i))
		}
	}
	j.comeBack(1)
	for i := range each {
		for _, r := range j.ranks {
			r.wantMiss(t, key("ends", i))
			r.wantMiss(t, key("deleted", i))
			r.wantAt(t, key("lasts", i), data(uint64(100+i), 5000))
			r.wantAt(t, key("left", i), data(uint64(i), 5000))
		}
	}
}
