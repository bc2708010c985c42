package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// TestAnEndAfterAPutThatARankHasNotHeardOf: a rank that is cut off has a name that ends, after another
// rank put it anew. When it hears of that, and after a restart of all, the name is there: what the
// rank that was cut off records of its own is older.
func TestAnEndAfterAPutThatARankHasNotHeardOf(t *testing.T) {
	const each, size = 5, 8 << 10
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("catalogue ", local), func(t *testing.T) {
			j := threeRanks(t, local)
			key := func(i int) string { return fmt.Sprint("k", i) }
			for i := range each {
				e := ns(key(i))
				e.Expires = time.Now().Add(time.Minute)
				if _, err := j.ranks[1].Put(t.Context(), e, data(uint64(i), size), nil); err != nil {
					t.Fatal(err)
				}
			}
			j.drainAll(1)
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
			j.late.Store(int64(2 * time.Minute))
			j.ranks[1].Sweep()
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
