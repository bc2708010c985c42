package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/tiers"
)

// cataloguedJob is a job of ranks that share what ranks 5, 6 and 7 left: five
// chains of ten blocks each.
func cataloguedJob(t *testing.T, ranks int, shmBytes int64) *job {
	c := newCampaign(t)
	for rank := uint32(5); rank <= 7; rank++ {
		r := c.session(rank, 16<<20)
		for n := range 5 {
			r.chain(leftKey(rank, n, ""), 0, 10, leftSeed(rank, n))
		}
		c.end(r)
	}
	j := &job{t: t, dir: c.dir, local: t.TempDir()}
	j.late.Store(int64(365 * 24 * time.Hour)) // after those
	return j.open(ranks, shmBytes)
}

func leftKey(rank uint32, chain int, i any) string {
	return fmt.Sprint("left", rank, ".", chain, ".", i)
}

func leftSeed(rank uint32, chain int) uint64 { return uint64(rank)*1000 + uint64(chain)*100 }

// takeIn shares the parts that were left out, as the adopters do: each rank's
// falls to one.
func (j *job) takeIn() {
	j.t.Helper()
	for self, r := range j.ranks {
		all, err := r.others.Parts(j.t.Context())
		if err != nil {
			j.t.Fatal(err)
		}
		var parts []tiers.Part
		for _, p := range all {
			if p.Rank >= 5 && int(p.Rank)%len(j.ranks) == self {
				parts = append(parts, p)
			}
		}
		if _, err := r.AdoptParts(j.t.Context(), parts); err != nil {
			j.t.Fatal(err)
		}
	}
	j.settle()
}

// wantAllLeft checks that a rank serves all that was left but for some keys.
func (j *job) wantAllLeft(r *jobRank, but map[string]bool) {
	j.t.Helper()
	for rank := uint32(5); rank <= 7; rank++ {
		for n := range 5 {
			for i := range 10 {
				if k := leftKey(rank, n, i); !but[k] {
					r.wantAt(j.t, k, data(leftSeed(rank, n)+uint64(i), 30_000))
				}
			}
		}
	}
}

// TestRanksServeWhatTheirCataloguesHave: every rank serves what any of them took
// in, through memories that do not hold it, and so does one that comes later.
func TestRanksServeWhatTheirCataloguesHave(t *testing.T) {
	j := cataloguedJob(t, 2, 4<<20)
	j.takeIn()
	for range 2 {
		for _, r := range j.ranks {
			j.wantAllLeft(r, nil)
		}
		j.settle()
	}
	late := j.start(2, 1, 8<<20)
	j.ranks = append(j.ranks, late)
	for _, r := range j.ranks {
		r.node.SetMembers(j.members()...)
	}
	j.settle()
	eventually(t, "a rank that comes later finds what was left", func() bool {
		return late.Contains(t.Context(), "ns", leftKey(5, 0, 0)) && late.Contains(t.Context(), "ns", leftKey(6, 0, 0)) && late.Contains(t.Context(), "ns", leftKey(7, 4, 9))
	})
	j.wantAllLeft(late, nil)
	var chain []string
	for i := range 10 {
		chain = append(chain, leftKey(7, 3, i))
	}
	for _, r := range j.ranks {
		if n := r.Probe(t.Context(), "ns", chain).Hits; n != 10 {
			t.Errorf("rank %d: a probe hits %d of 10", r.node.Self(), n)
		}
		if st := r.Stats(); st.Lost != 0 {
			t.Errorf("rank %d lost %d blocks", r.node.Self(), st.Lost)
		}
	}
	// The parts are shared out anew, and those of whom they were forget them.
	j.takeIn()
	j.takeIn()
	for _, r := range j.ranks {
		j.wantAllLeft(r, nil)
	}
}

// TestRanksWithdrawFromCatalogues: what any rank puts, deletes, ends or clears
// later is so on all ranks, whoever's catalogue has it.
func TestRanksWithdrawFromCatalogues(t *testing.T) {
	j := cataloguedJob(t, 3, 16<<20)
	j.takeIn()
	a, b := j.ranks[0], j.ranks[1]
	gone := map[string]bool{}
	for n := range 5 {
		for rank := uint32(5); rank <= 7; rank++ { // each by another rank than has it, and by the one
			k := leftKey(rank, n, 9)
			gone[k] = true
			if !j.ranks[n%3].Delete(t.Context(), "ns", k) {
				t.Errorf("%s was not there to be deleted", k)
			}
		}
	}
	newer, fresh := leftKey(5, 1, 8), data(9999, 30_000)
	gone[newer] = true
	for rank := range 3 {
		if got := (5 % 3); rank != got {
			j.ranks[rank].putKey(t, newer, fresh)
			break
		}
	}
	ends := leftKey(7, 2, 9-1)
	gone[ends] = true
	if !a.Expire(t.Context(), "ns", ends, b.state.Now().Add(time.Minute)) {
		t.Error("a name that a catalogue has did not get an end")
	}
	eventually(t, "the name ends", func() bool {
		info, ok := b.Stat(t.Context(), "ns", ends)
		return ok && !info.Expires.IsZero()
	})
	j.late.Add(int64(2 * time.Minute))
	for _, r := range j.ranks {
		r.Sweep()
	}
	check := func() {
		t.Helper()
		for _, r := range j.ranks {
			for k := range gone {
				if k != newer {
					eventually(t, "gone on every rank", func() bool { return !r.Contains(t.Context(), "ns", k) })
				}
			}
			eventually(t, "replaced on every rank", func() bool {
				v, err := r.Get(t.Context(), "ns", newer)
				if err != nil {
					return false
				}
				defer v.Release()
				return string(v.Bytes()) == string(fresh)
			})
		}
	}
	check()
	for _, r := range j.ranks {
		j.wantAllLeft(r, gone)
	}
	j.takeIn()
	check()
	b.Clear(t.Context(), "ns", true)
	for _, r := range j.ranks {
		for _, k := range []string{leftKey(5, 0, 0), leftKey(6, 1, 1), leftKey(7, 2, 2), newer} {
			eventually(t, "cleared on every rank", func() bool { return !r.Contains(t.Context(), "ns", k) })
		}
	}
	j.takeIn()
	for _, r := range j.ranks {
		for rank := uint32(5); rank <= 7; rank++ {
			r.wantMiss(t, leftKey(rank, 0, 0))
		}
	}
}

// TestCatalogueOfADeadRank: the parts of a rank that dies fall to another, and
// are found meanwhile where they were said to be.
func TestCatalogueOfADeadRank(t *testing.T) {
	j := cataloguedJob(t, 3, 16<<20)
	j.takeIn()
	j.die(fabric.Rank(2))
	for _, r := range j.ranks[:2] {
		eventually(t, "a dead rank's statements are handed on", func() bool {
			return r.Contains(t.Context(), "ns", leftKey(5, 0, 0)) && r.Contains(t.Context(), "ns", leftKey(5, 4, 9))
		})
		j.wantAllLeft(r, nil)
	}
}

// TestExpireOfWhatCannotBeBroughtUp: a rank whose catalogue alone has a name, and whose
// memory is full of what is in use, cannot set when it ends. Whoever asked learns that.
func TestExpireOfWhatCannotBeBroughtUp(t *testing.T) {
	j := cataloguedJob(t, 2, 4<<20)
	j.takeIn()
	owner, other := j.ranks[5%2], j.ranks[(5+1)%2]
	use := func(key string) {
		v, err := owner.Get(t.Context(), "ns", key)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Release)
	}
	for i := 0; ; i++ {
		key := fmt.Sprint("in use ", i)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := owner.Put(ctx, ns(key), data(uint64(i), 100_000), nil)
		cancel()
		if err != nil {
			break
		}
		use(key)
	}
	for i, was := 0, int64(0); was < owner.state.Last().Memory.Usage().Used; i++ { // for which there is room yet
		was = owner.state.Last().Memory.Usage().Used
		use(leftKey(5, 1, i))
	}
	key := leftKey(5, 0, 3)
	ended := other.Expire(t.Context(), "ns", key, time.Now().Add(-time.Second))
	if j.settle(); ended == other.Contains(t.Context(), "ns", key) {
		t.Errorf("told that the name has ended: %v, and that is not so", ended)
	}
	if ended {
		t.Error("the rank has room")
	}
}

// TestARankThatMissesAClear: one of three ranks is cut off while another one clears. Once it
// answers, what it put before is gone, from its memory and from its catalogue, and what was put
// after that stays, whoever put it. Meanwhile others do not find it there.
func TestARankThatMissesAClear(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, anew := range []bool{false, true} {
			t.Run(fmt.Sprintf("catalogue %v, anew %v", local, anew), func(t *testing.T) {
				t.Parallel()
				j := threeRanks(t, local)
				for i := range 20 {
					j.ranks[2].putKey(t, fmt.Sprint("old", i), data(uint64(i), 8<<10))
					j.ranks[2].putKey(t, fmt.Sprint("both", i), data(uint64(100+i), 8<<10))
				}
				j.drainAll(2)
				if local {
					j.takeAllIn()
				}
				j.world.Partition([]fabric.Rank{0, 1}, []fabric.Rank{2})
				j.ranks[1].Clear(t.Context(), "ns", false)
				for i := range 20 {
					j.ranks[2].wantAt(t, fmt.Sprint("old", i), data(uint64(i), 8<<10))
					j.ranks[2].putKey(t, fmt.Sprint("new", i), data(uint64(200+i), 8<<10))
					j.ranks[i%3].putKey(t, fmt.Sprint("both", i), data(uint64(300+i), 8<<10))
				}
				if _, err := j.ranks[2].Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				j.world.Heal()
				if anew {
					j.restart(2)
				}
				for i := range 20 { // by a clearing, or by answers to what it states after that
					eventually(t, "the rank has heard of it", func() bool { return !j.ranks[2].Contains(t.Context(), "ns", fmt.Sprint("old", i)) })
				}
				j.settle()
				for _, r := range j.ranks {
					for i := range 20 {
						r.wantMiss(t, fmt.Sprint("old", i))
						r.wantAt(t, fmt.Sprint("new", i), data(uint64(200+i), 8<<10))
						r.wantAt(t, fmt.Sprint("both", i), data(uint64(300+i), 8<<10))
					}
				}
			})
		}
	}
}
