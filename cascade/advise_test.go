package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/tiers"
)

// slowFiles is a cold tier each of whose reads takes a while more.
type slowFiles struct {
	tiers.Files
	wait time.Duration
}

func (s slowFiles) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	time.Sleep(s.wait)
	return s.Files.ReadBatch(ctx, reads)
}

// TestAdviseOfASlowTier: once some loads were slow, what lies in that tier is not worth loading for a
// client that computes faster, and is not brought here for it; what is in memory is.
func TestAdviseOfASlowTier(t *testing.T) {
	const n, size = 8, 64 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 8<<20)
	r := j.ranks[0]
	r.state.Cold.Files = slowFiles{r.state.Cold.Files, 20 * time.Millisecond}
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		r.putKey(t, keys[i], data(uint64(i), size))
	}
	j.drainAll(0)
	r.dropMemory(t)
	for i := range n / 2 {
		r.wantAt(t, keys[i], data(uint64(i), size)) // in memory from then on
	}
	for perBlock, want := range map[time.Duration]int{time.Second: n, time.Millisecond: n / 2, 0: 0} {
		a := Advise(t.Context(), r.Store, "ns", keys, perBlock)
		if a.Hits != n || a.Blocks != want {
			t.Errorf("a block takes %v to compute: %d of %d are to be loaded, want %d: %+v", perBlock, a.Blocks, a.Hits, want, a.Runs)
		}
		if len(a.Runs) != 2 || a.Runs[0].LoadUS >= 10_000 || a.LoadUS() < 10_000 {
			t.Errorf("runs %+v", a.Runs)
		}
	}
}
