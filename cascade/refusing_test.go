package cascade

import (
	"context"
	"fmt"
	"sync/atomic"

	"cascadekv/tiers"
)

// refusing is a cold tier that takes nothing while full.
type refusing struct {
	tiers.Tier
	full atomic.Bool
}

func (c *refusing) Put(ctx context.Context, items ...tiers.Item) error {
	if c.full.Load() {
		return fmt.Errorf("%w: for the test", tiers.ErrUnavailable)
	}
	return c.Tier.Put(ctx, items...)
}

// refuse opens the rig's store anew, with a cold tier that takes nothing from now
// on.
func refuse(r *rig) *refusing {
	r.t.Helper()
	r.Store.Close(context.Background())
	c := &refusing{Tier: r.cold}
	c.full.Store(true)
	r.cold = c
	r.open()
	return c
}
