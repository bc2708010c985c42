package cascade

import (
	"fmt"
	"os"
	"testing"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/cascade/residency"
)

// giveUpKeys gives up what a rank has of keys, as for a budget of its files.
func giveUpKeys(t *testing.T, s *Store, keys ...string) {
	t.Helper()
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	for _, key := range keys {
		b := residency.BlockOf(s.state.Mu.Names.Get("ns", key))
		for i, m := range s.state.Mem {
			if b.In(i) {
				s.state.DropLocked(b, m, true)
			}
		}
		giveUpLocked(t, s, b)
	}
}

// giveUpLocked gives up a block that is in this rank's files alone.
func giveUpLocked(t *testing.T, s *Store, b *residency.Block) {
	t.Helper()
	if err := s.state.Cold.Files.Evict(b.Info.ID); err != nil {
		t.Error(err)
	}
	s.state.Cold.LeaveLocked(b, true)
	s.state.VanishLocked(b)
}

// flush has the catalogue withdraw what is invalid.
func flush(t *testing.T, s *Store) {
	t.Helper()
	if err := s.others.FlushTombstones(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantNever fails if a key has the bytes p: it is a miss, or has others.
func wantNever(t *testing.T, s *Store, when, key string, p []byte) {
	t.Helper()
	v, err := s.Get(t.Context(), "ns", key)
	if err != nil {
		return
	}
	defer v.Release()
	if string(v.Bytes()) == string(p) {
		t.Errorf("%s: %s has what was overwritten", when, key)
	}
}

// TestGivenUpOverAnOlderPut: what another part has of a name does not come back once this rank has given up what it put over it, and the
// file of that is gone.
func TestGivenUpOverAnOlderPut(t *testing.T) {
	for _, spilled := range []bool{false, true} {
		t.Run(fmt.Sprint("spilled ", spilled), func(t *testing.T) { givenUpOverAnOlderPut(t, spilled) })
	}
}

func givenUpOverAnOlderPut(t *testing.T, spilled bool) {
	const size = 30_000
	c := newCampaign(t)
	older := data(1, size)
	other := c.session(1, 8<<20)
	other.put(ns("k"), older)
	c.end(other)
	r := c.session(0, 8<<20)
	c.takeIn(r)
	r.want("k", older)
	r.put(ns("k"), data(2, size))
	r.put(ns("hold"), data(22, size)) // lest the file goes before the withdrawal is recorded
	r.drained()
	r.put(ns("fill"), data(3, 1_020_000))
	r.drained()
	r.put(ns("more"), data(4, 700_000))
	r.drained()
	if spilled {
		c.spill(r)
		for _, f := range r.state.Cold.Files.Spilled() {
			r.space.Reload(t.Context(), f, coldspace.Stay)
		}
	}
	before := len(segmentsIn(c.dir, 0))
	giveUpKeys(t, r.Store, "k")
	flush(t, r.Store)
	r.drained()
	giveUpKeys(t, r.Store, "hold")
	r.space.MergeAll(t.Context())
	eventually(t, "the file of what was given up is gone", func() bool { return len(segmentsIn(c.dir, 0)) < before })
	again := func(when string) {
		c.takeIn(r)
		wantNever(t, r.Store, when, "k", older)
	}
	again("after a round")
	for range 2 { // the part is away
		if _, err := r.AdoptParts(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	again("when the part is back")
	c.end(r)
	r = c.session(0, 8<<20)
	again("after a restart")
	c.end(r)
	if err := os.RemoveAll(c.local); err != nil {
		t.Fatal(err)
	}
	r = c.session(0, 8<<20)
	again("after a restart without the index")
	c.end(r)
}

// TestGivenUpAndPutElsewhere: what a rank has given up, while nobody looks in its index, is not what it finds
// there later of a name that another rank has put since, whatever became of that.
func TestGivenUpAndPutElsewhere(t *testing.T) {
	const size = 20_000
	for _, becomes := range []string{"it stays", "it is given up", "it ends"} {
		t.Run(becomes, func(t *testing.T) {
			j := threeRanks(t, true)
			a, b, older := j.ranks[0], j.ranks[1], data(2, size)
			a.putKey(t, "k", older)
			a.putKey(t, "hold", data(7, size))
			j.drainAll(0)
			for i := range 3 {
				a.putKey(t, fmt.Sprint("fill", i), data(uint64(100+i), 255<<10))
				j.drainAll(0)
			}
			giveUpKeys(t, a.Store, "k")
			flush(t, a.Store)
			j.settle()
			e := ns("k")
			if becomes == "it ends" {
				e.Expires = b.state.Now().Add(time.Minute)
			}
			if _, err := b.Put(t.Context(), e, data(3, size), nil); err != nil {
				t.Fatal(err)
			}
			j.settle()
			switch becomes {
			case "it is given up":
				j.drainAll(1)
				giveUpKeys(t, b.Store, "k")
				flush(t, b.Store)
			case "it ends":
				j.late.Store(int64(2 * time.Minute))
				for _, r := range j.ranks {
					r.Sweep()
				}
			}
			j.settle()
			a.dropMemory(t)
			a.space.SpillAll(t.Context())
			j.settle()
			for i, r := range j.ranks {
				wantNever(t, r.Store, fmt.Sprint("rank ", i), "k", older)
			}
		})
	}
}
