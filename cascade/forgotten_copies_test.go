package cascade

import (
	"fmt"
	"testing"

	"cascadekv/cascade/names"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// TestAForgottenCopyLeavesTheOriginal: a rank that gives up its copy of another rank's name, for want of
// room for names, leaves the name where it was put, also for the ranks that come
// after it.
func TestAForgottenCopyLeavesTheOriginal(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, size := range []int{2000, 20_000} {
			for _, how := range []string{"in memory", "in files"} {
				t.Run(fmt.Sprintf("catalogue %v, %d bytes, %s", local, size, how), func(t *testing.T) {
					t.Parallel()
					j := threeRanks(t, local)
					p := data(1, size)
					j.ranks[2].putKey(t, "k", p)
					j.ranks[2].putKey(t, "last", data(10_000, 255<<10)) // ends the file
					j.drainAll(2)
					r := j.ranks[1]
					for range 5 {
						r.wantAt(t, "k", p) // kept here
					}
					r.forgetCopy(t, how)
					if local {
						j.takeAllIn()
					}
					j.settle()
					for _, r := range j.ranks {
						r.wantAt(t, "k", p)
					}
					j.drainAll(0, 1, 2)
					if local { // which the others have taken in
						j.ranks = j.ranks[:2]
					}
					for i, r := range j.afterRestart().ranks {
						if local || i != 1 {
							r.wantAt(t, "k", p)
						}
					}
				})
			}
		}
	}
}

// forgetCopy has a rank give up its copy of k.
func (r *jobRank) forgetCopy(t *testing.T, how string) {
	t.Helper()
	if how != "in memory" {
		if _, err := r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := r.state.Limits.Load()
	tight := *before
	tight.NameBytes = names.Cost("k", "") / 2
	r.state.Limits.Store(&tight)
	r.putKey(t, "x", data(7, 100))
	r.state.Limits.Store(before)
	if err := r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestForgottenCopiesStayDeleted: copies of names of one block that a rank forgot for want of room are
// not back once the names were deleted.
func TestForgottenCopiesStayDeleted(t *testing.T) {
	const n = 40
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("catalogue ", local), func(t *testing.T) {
			j := threeRanks(t, local)
			p := data(1, 2000)
			key := func(i int) string { return fmt.Sprint("k", i) }
			for i := range n {
				j.ranks[0].putKey(t, key(i), p)
			}
			j.settle()
			r := j.ranks[1]
			for i := range n {
				for range 4 {
					r.wantAt(t, key(i), p)
				}
			}
			j.drainAll(1)
			l := *r.state.Limits.Load()
			l.NameBytes = 28 * names.Cost("k10", "")
			r.state.Limits.Store(&l)
			for i := range 3 {
				r.putKey(t, fmt.Sprint("x", i), data(uint64(7+i), 100))
			}
			if r.Stats().Forgotten == 0 {
				t.Fatal("nothing is forgotten")
			}
			for i := range n {
				j.ranks[0].Delete(t.Context(), "ns", key(i))
			}
			l.NameBytes = 0
			r.state.Limits.Store(&l)
			j.settle()
			j.drainAll(0, 1, 2)
			for i := range 3 { // ends the files
				for one := range 2 {
					j.ranks[one].putKey(t, fmt.Sprint("end", one, i), data(uint64(20_000+10*one+i), 255<<10))
					j.drainAll(one)
				}
			}
			for _, now := range []*job{j, j.afterRestart()} {
				for i := range n {
					now.ranks[1].wantMiss(t, key(i))
				}
			}
		})
	}
}

// TestWithdrawnCopiesHideNoPut: a copy of a name that a rank has from the memory of the run before it is recorded a tick before
// the put. That it is withdrawn, for any reason, does not withdraw the put, which another rank has in its files.
func TestWithdrawnCopiesHideNoPut(t *testing.T) {
	for how, withdraw := range map[string]func(r *jobRank, put uint64){
		"a home says that it is out of date": func(r *jobRank, put uint64) { Local{r.Store}.Outdated("ns", "k", put) },
		"the put is found in files": func(r *jobRank, put uint64) {
			other := block.Info{ID: block.Sum(block.Bits128, data(9, 2000)), Size: 2000}
			r.others.GiveWay([]tiers.Found{{Name: block.Name{Namespace: "ns", Key: "k", Seq: put}, Info: other}})
		},
		"another copy replaces it": func(r *jobRank, put uint64) {
			r.state.Mu.Lock()
			defer r.state.Mu.Unlock()
			other := r.state.Mu.Blocks[block.Sum(block.Bits128, data(3, 2000))]
			r.state.Mu.Names.Copy(block.Name{Namespace: "ns", Key: "k", Seq: put}, &other.Block)
			r.state.ApplyLocked()
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			j := threeRanks(t, true)
			p := data(1, 2000) // each rank writes what is as small as that itself
			j.ranks[1].putKey(t, "own", p)
			j.ranks[1].putKey(t, "other", data(3, 2000))
			j.ranks[2].putKey(t, "k", p)
			j.drainAll(1, 2)
			put := j.ranks[2].told("k").Name.Seq
			r := j.ranks[1]
			r.state.Mu.Lock()
			r.state.BindRecordedLocked(block.Name{Namespace: "ns", Key: "k", Seq: put - 1}, r.state.Mu.Blocks[block.Sum(block.Bits128, p)])
			r.state.Mu.Unlock()
			withdraw(r, put)
			j.drainAll(1)
			j.ranks = j.ranks[:2] // which take in the files of the last
			for _, r := range j.afterRestart().ranks {
				r.wantAt(t, "k", p)
			}
		})
	}
}
