package coldspace

import (
	"fmt"
	"testing"

	"cascadekv/tiers"
)

// What waits for the catalogue to be filled is no failure, and nothing is logged of it each
// time that it is tried. Any other error is one.
func TestWhatWaitsIsNoFailure(t *testing.T) {
	for err, failures := range map[error]uint64{
		fmt.Errorf("%w: %w: for the test", tiers.ErrUnavailable, tiers.ErrNotNow): 0,
		fmt.Errorf("%w: for the test", tiers.ErrUnavailable):                      2,
	} {
		r := newRank(t)
		r.files.spilling = err
		r.SpillAll(t.Context())
		r.Reload(t.Context(), tiers.SpilledFile{}, Stay)
		if got := r.Cold.Stats.Errors; got != failures || r.Log.Has("for the test") != (failures > 0) {
			t.Errorf("%v: %d errors, logged %v", err, got, r.Log.Lines("for the test"))
		}
	}
}
