package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// TestAPutThatARankHasNotHeardOf: a rank that is cut off reads a name, or has one that ends,
// after another rank put the name for other bytes. When it hears of that, and after a restart of
// all, the name stands for those: what the cut off rank records of its own is older.
func TestAPutThatARankHasNotHeardOf(t *testing.T) {
	const each, size = 3, 8 << 10
	for _, local := range []bool{false, true} {
		for _, how := range []string{"copied", "replaced", "ends"} {
			t.Run(fmt.Sprintf("catalogue %v, %s", local, how), func(t *testing.T) {
				t.Parallel()
				j := threeRanks(t, local)
				key := func(i int) string { return fmt.Sprint("k", i) }
				before := j.ranks[1]
				if how == "copied" {
					before = j.ranks[0]
				}
				for i := range each {
					j.ranks[1].putKey(t, fmt.Sprint("own", i), data(uint64(i), size)) // keeps the bytes
					e := ns(key(i))
					if how == "ends" {
						e.Expires = time.Now().Add(time.Minute)
					}
					if how == "replaced" {
						before.putKey(t, key(i), data(uint64(1000+i), size))
						before = j.ranks[0]
					}
					if _, err := before.Put(t.Context(), e, data(uint64(i), size), nil); err != nil {
						t.Fatal(err)
					}
					if how == "replaced" {
						before = j.ranks[1]
					}
				}
				for r := range j.ranks {
					j.apart(r)
				}
				if local {
					j.takeAllIn()
				}
				j.world.Partition([]fabric.Rank{0, 2}, []fabric.Rank{1})
				for i := range each {
					j.ranks[2].putKey(t, key(i), data(uint64(100+i), size))
				}
				if _, err := j.ranks[2].Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if how == "ends" {
					j.late.Store(int64(2 * time.Minute))
					j.ranks[1].Sweep()
				} else {
					for i := range each {
						if v, err := j.ranks[1].Get(t.Context(), "ns", key(i)); err == nil { // as it was, if at all
							v.Release()
						}
					}
				}
				j.world.Heal()
				j.settle()
				j.drainAll(0, 1, 2)
				for _, now := range []*job{j, j.afterRestart()} {
					for i := range each {
						for _, r := range now.ranks {
							r.wantAt(t, key(i), data(uint64(100+i), size))
						}
					}
				}
			})
		}
	}
}

// TestSmallNamesOfTwoRanks: small names are in the files of the rank that put them and in those of one
// that read them often. Each takes in what the other wrote, their files are spilled, and merged:
// the names are found everywhere, also after a restart of the two, and of all.
func TestSmallNamesOfTwoRanks(t *testing.T) {
	const n, size = 125, 2000
	key := func(i int) string { return fmt.Sprint("k", i) }
	for _, merged := range []bool{false, true} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("merged %v, all %v", merged, all), func(t *testing.T) {
				j := threeRanks(t, true)
				for i := range n {
					j.ranks[2].putKey(t, key(i), data(uint64(i), size))
				}
				j.drainAll(2)
				for i := range n {
					for range 4 {
						j.ranks[1].wantAt(t, key(i), data(uint64(i), size))
					}
				}
				j.drainAll(1)
				for r := 1; r <= 2; r++ {
					for i := range 3 { // ends the files
						j.ranks[r].putKey(t, fmt.Sprint("end", r, i), data(uint64(20_000+10*r+i), 255<<10))
						j.drainAll(r)
					}
				}
				j.takeAllIn()
				for _, r := range j.ranks {
					r.dropMemory(t)
				}
				for r := 1; r <= 2; r++ {
					j.ranks[r].space.SpillAll(t.Context())
					for range 3 {
						if merged {
							j.ranks[r].space.MergeAll(t.Context())
							j.ranks[r].space.SpillAll(t.Context())
						}
					}
				}
				j.settle()
				now := j
				if all {
					now = j.afterRestart()
				}
				for range 2 {
					for _, r := range now.ranks {
						for i := range n {
							r.wantAt(t, key(i), data(uint64(i), size))
						}
					}
					if all {
						break
					}
					j.restart(1)
					j.restart(2)
				}
			})
		}
	}
}
