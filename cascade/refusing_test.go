package cascade

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// refusing is a cold tier that takes nothing while full.
type refusing struct {
	tiers.Files
	full atomic.Bool
}

func (c *refusing) Put(ctx context.Context, items ...tiers.Item) error {
	if c.full.Load() {
		return fmt.Errorf("%w: for the test", tiers.ErrUnavailable)
	}
	return c.Files.Put(ctx, items...)
}

// newRefusing returns one with nothing in it.
func newRefusing(t testing.TB) *refusing {
	h, err := host.Open(256 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return &refusing{Files: keepOpen{tiers.Plain{Tier: h}}}
}

// refuse opens the rig's store anew, with a cold tier that takes nothing from now
// on.
func refuse(r *rig) *refusing {
	r.t.Helper()
	r.Store.Close(context.Background())
	c := &refusing{Files: r.cold}
	c.full.Store(true)
	r.cold = c
	r.open()
	return c
}
