package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
)

const (
	// adoptQuiet is how long the ranks must have stayed the same before one of
	// them takes in what others left: when a job starts, most are still to come.
	adoptQuiet = 2 * time.Second

	// adoptEvery is how often a rank looks for what other jobs left since.
	adoptEvery = 5 * time.Minute
)

// adopter takes in what ranks that are no more, of this and of other jobs, left
// in the cold tier. Each rank recovers what its own number left, and takes over
// here what belonged to a process that still lived then; the rest is shared
// out by the ring, all that one number left to one rank, so that names find
// their blocks.
type adopter struct {
	store   *cascade.Store
	node    *dht.Node
	log     *slog.Logger
	changed chan struct{} // when ranks came or went
}

func newAdopter(store *cascade.Store, log *slog.Logger) *adopter {
	return &adopter{store: store, log: log, changed: make(chan struct{}, 1)}
}

// wake has the adopter look again.
func (a *adopter) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// run adopts until ctx ends.
func (a *adopter) run(ctx context.Context) {
	next := time.NewTimer(adoptQuiet)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
			next.Reset(adoptQuiet)
			continue
		case <-next.C:
		}
		a.adopt(ctx)
		next.Reset(adoptEvery)
	}
}

// adopt takes in the parts that fall to this rank.
func (a *adopter) adopt(ctx context.Context) {
	parts, err := a.store.Parts(ctx)
	if err != nil {
		a.log.Warn("what other ranks left in lustre is not looked for now", "err", err)
		return
	}
	for _, p := range parts {
		rank := fabric.Rank(p.Rank)
		if rank != a.node.Self() && (a.node.Has(rank) || !a.node.IsFirstHome("", fmt.Sprintf("rank%03d", p.Rank))) {
			continue
		}
		began := time.Now()
		got, err := a.store.Adopt(ctx, p)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("what another rank left in lustre is not used; trying again later", "of", p.Rank, "err", err)
			}
			continue
		}
		if got.Names == 0 {
			continue // nothing that was not adopted before
		}
		a.log.Info("adopted", "of", p.Rank, "incarnation", p.Incarnation, "blocks", got.Blocks, "names", got.Names, "bytes", got.Bytes,
			"took", time.Since(began).Round(time.Millisecond).String())
	}
}
