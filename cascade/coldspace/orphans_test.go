package coldspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// leave has ended runs leave parts of so many blocks each, the youngest first, and a
// round find them. The blocks of part i are "i.0", "i.1" and so on.
func (r *rank) leave(t *testing.T, parts, blocks int) (all []tiers.Part) {
	t.Helper()
	var left []tiers.Left
	for i := parts - 1; i >= 0; i-- {
		p := tiers.Part{Rank: 9, Incarnation: uint64(i + 1)}
		var entries []tiers.Entry
		for j := range blocks {
			data := parttest.Data(uint64(1000*(i+1)+j), size)
			info := block.Info{ID: block.Sum(r.IDBits, data), Size: size, CRC: block.CRC(data)}
			n := parttest.Name(fmt.Sprintf("%d.%d", i, j))
			n.Seq = uint64(1000*(i+1) + j)
			if err := r.files.Put(context.Background(), tiers.Item{Info: info, Data: data}); err != nil {
				t.Fatal(err)
			}
			entries = append(entries, tiers.Entry{Info: info, Names: []block.Name{n}})
		}
		r.files.parts[p] = entries
		all = append(all, p)
		left = append(left, tiers.Left{Bytes: int64(blocks) * size * 5 / 4, Ended: true})
	}
	r.SetOrphans(all, left)
	slices.Reverse(all)
	return all
}

// As the budget fills, what ended runs left is adopted, the oldest first and no more
// than is needed; it then leaves before what is young.
func TestOrphansAreAdoptedOldestFirst(t *testing.T) {
	r := newRank(t, budget(100))
	r.fill(60, 1)
	parts := r.leave(t, 4, 15)
	r.Shrink()
	if len(r.mergeNow) != 1 {
		t.Error("nobody adopts what is due")
	}
	r.AdoptDue(t.Context())
	if n := len(r.files.asked); n == 0 || n == 4 || !slices.Equal(r.files.asked, parts[:n]) {
		t.Fatalf("adopted %v", r.files.asked)
	}
	n := len(r.files.asked)
	if r.Block("0.0") == nil || !r.Block("0.0").Below.Old || r.Cold.Old != int64(15*n*size) || r.Block("3.0") != nil {
		t.Errorf("%d bytes are old", r.Cold.Old)
	}
	if got := r.NotAdopted(parts); !slices.Equal(got, parts[n:]) {
		t.Errorf("not taken: %v", got)
	}
	st := r.orphans()
	if st.Parts != 4-n || st.Inherited != uint64(n) || st.Bytes != int64((4-n)*15*size*5/4) {
		t.Errorf("%+v", st)
	}
	asked := len(r.files.asked)
	if r.AdoptDue(t.Context()); len(r.files.asked) != asked {
		t.Error("more is adopted than is needed")
	}
	for i := range 30 {
		r.PutCold(parttest.Name(fmt.Sprint("late", i)), parttest.Data(uint64(50_000+i), size))
	}
	r.Shrink()
	if r.Block("0") == nil || r.Block("0.0") != nil {
		t.Error("what is young leaves before what is old")
	}
	parttest.Check(t, r.State)
}

// In a shortage what is adopted comes on top of what this rank may take.
func TestOrphansInAShortage(t *testing.T) {
	r := newRank(t)
	r.fill(64, 1)
	r.leave(t, 2, 5)
	r.full()
	r.Shrink()
	limit := r.limit()
	r.AdoptDue(t.Context())
	n := int64(len(r.files.asked))
	if got := r.limit(); n == 0 || got != limit+n*5*size*5/4 {
		t.Errorf("the limit is %d, after %d and %d parts", got, limit, n)
	}
	parttest.Check(t, r.State)
}

// While nothing is short, nothing is adopted.
func TestNothingIsAdoptedWithoutNeed(t *testing.T) {
	r := newRank(t, budget(100))
	r.fill(5, 1)
	r.leave(t, 2, 5)
	r.Shrink()
	r.AdoptDue(t.Context())
	if len(r.files.asked) != 0 || len(r.mergeNow) != 0 {
		t.Errorf("asked for %v", r.files.asked)
	}
}

// A part that does not come is left alone until it is found again.
func TestAPartThatDoesNotCome(t *testing.T) {
	for name, owned := range map[string]bool{"somebody owns it": true, "it can not be read": false} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t, budget(20))
			r.fill(18, 1)
			parts := r.leave(t, 1, 5)
			if owned {
				delete(r.files.parts, parts[0])
			} else {
				r.files.failing = fmt.Errorf("%w: for the test", tiers.ErrUnavailable)
			}
			r.AdoptDue(t.Context())
			if st := r.orphans(); st.Parts != 0 || st.Inherited != 0 || len(r.files.asked) != 1 {
				t.Errorf("%+v, asked %d times", st, len(r.files.asked))
			}
			if got := r.NotAdopted(parts); len(got) != 1 {
				t.Error("it counts as taken")
			}
			if failed := r.Cold.Stats.Errors == 1; failed == owned {
				t.Errorf("%d errors", r.Cold.Stats.Errors)
			}
			if _, _, err := r.AdoptOrphan(t.Context(), parts[0]); errors.Is(err, tiers.ErrUnavailable) == owned {
				t.Error(err)
			}
			if r.Cold.Loads != 0 {
				t.Error("nothing leaves the tier any more")
			}
		})
	}
}

// Live runs of other jobs have a part of the budget; what they and ended runs leave of
// it is this rank's.
func TestTheBudgetIsShared(t *testing.T) {
	r := newRank(t, budget(40))
	whole := r.mergeBudget()
	r.files.beside = whole * 3 / 4
	r.SetOrphans([]tiers.Part{{Rank: 9}}, []tiers.Left{{Bytes: 100}})
	if got := r.mergeBudget(); got != whole/3 { // of three runs: this one, that of OthersUsage and the part
		t.Errorf("%d of %d bytes are this rank's", got, whole)
	}
	st := r.orphans()
	if st.Runs != 2 || st.RunBytes != r.files.beside+100 || st.Parts != 0 {
		t.Errorf("%+v", st)
	}
	r.SetOrphans([]tiers.Part{{Rank: 9}}, nil) // a round that failed
	if got := r.orphans(); *got != *st {
		t.Errorf("%+v", got)
	}
}

// Chains of an earlier run with which names of other parts go on are used: they do not
// leave before what is young.
func TestHeadsOfOthersChainsStay(t *testing.T) {
	r := newRank(t, budget(20))
	for i := range 4 {
		n := parttest.Name(fmt.Sprint("old", i))
		if i%2 == 1 {
			n.Parent = fmt.Sprint("old", i-1)
		}
		b := r.PutCold(n, parttest.Data(uint64(100+i), size))
		r.Mu.Lock()
		r.Cold.LeaveLocked(b, false)
		r.Cold.AdoptLocked(b)
		r.Mu.Unlock()
	}
	next := parttest.Name("next", "old1")
	next.Seq = 5
	r.known.Hold(next, parttest.Data(200, size))
	r.KeepHeads(false)
	if r.Cold.Old != 2*size || r.Block("old0").Below.Old || r.Block("old1").Below.Old {
		t.Errorf("%d bytes are old", r.Cold.Old)
	}
	r.fill(16, 1)
	r.PutCold(parttest.Name("one more"), parttest.Data(300, size))
	r.Shrink()
	if got := r.Has("old0", "old1", "old2", "old3"); !slices.Equal(got, []string{"old0", "old1", "old2"}) {
		t.Errorf("%v stay", got)
	}
	parttest.Check(t, r.State)
}

// Where what is spilled takes all of the budget, what is old leaves all the same.
func TestOldBlocksLeaveBesideSpilledFiles(t *testing.T) {
	r := newRank(t, budget(40))
	r.leave(t, 1, 45)
	r.AdoptDue(t.Context())
	r.Mu.Lock()
	if r.Cold.Old == 0 {
		t.Error("nothing is old")
	}
	r.guarded.Spilled = []tiers.SpilledFile{{Bytes: 100 * size}}
	r.Mu.Unlock()
	if r.Shrink(); r.Cold.Old > 0 {
		t.Errorf("%d bytes of what is old stay", r.Cold.Old)
	}
}
