package cascade

import (
	"context"
	"reflect"
	"testing"

	"cascadekv/tiers"
)

// reporting is a cold tier with statistics of its own.
type reporting struct {
	tiers.Files
	stats tiers.Stats
}

func (c *reporting) Stats() tiers.Stats { return c.stats }

// TestColdTierReports: the statistics have what the cold tier reports of itself; a
// memory tier reports nothing of the kind.
func TestColdTierReports(t *testing.T) {
	r := newRig(t, 16<<20, true)
	r.Store.Close(context.Background())
	c := &reporting{Files: r.cold, stats: tiers.Stats{
		Health:   &tiers.Health{ReadOnly: true, Poisoned: 3, Reads: tiers.ReadErrors{Gone: 4}},
		Merged:   &tiers.Merged{Merges: 5},
		Striping: &tiers.Striping{Granted: "-c 2"},
	}}
	r.cold = c
	r.open()
	all := r.Stats().Tiers
	if cold := all[len(all)-1]; !reflect.DeepEqual(cold.Stats, c.Stats()) {
		t.Errorf("%+v", cold)
	}
	if m := all[0]; m.Health != nil || m.Merged != nil || m.Striping != nil {
		t.Errorf("%+v", m)
	}
}
