package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/tiers"
)

const (
	// adoptQuiet is how long the ranks must have stayed the same before one of
	// them takes in what others left: when a job starts, most are still to come.
	adoptQuiet = 2 * time.Second

	// adoptEvery is how often a rank looks for what other jobs left since.
	adoptEvery = 5 * time.Minute

	// adoptWatch is how often it looks whether its catalogue broke; one that
	// cannot be begun anew is tried again later and later.
	adoptWatch = 5 * time.Second
)

// adopter takes in what ranks that are no more, of this and of other jobs, left
// in the cold tier. Each rank recovers what its own number left, and takes over
// here what belonged to a process that still lived then; the rest is shared
// out by the ring, all that one number left to one rank, so that names find
// their blocks.
type adopter struct {
	store   *cascade.Store
	self    fabric.Rank
	node    *dht.Node // nil: the rank is alone, and all is its own
	log     *slog.Logger
	changed chan struct{} // when ranks came or went
}

func newAdopter(store *cascade.Store, self fabric.Rank, log *slog.Logger) *adopter {
	return &adopter{store: store, self: self, log: log, changed: make(chan struct{}, 1)}
}

// wake has the adopter look again.
func (a *adopter) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// run adopts until ctx ends, first after the given time.
func (a *adopter) run(ctx context.Context, first time.Duration) {
	next := time.NewTimer(first)
	defer next.Stop()
	watch := time.NewTicker(adoptWatch)
	defer watch.Stop()
	broken := adoptWatch
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
			next.Reset(adoptQuiet)
			continue
		case <-watch.C:
			err := a.store.CatalogueErr()
			if err == nil {
				if broken != adoptWatch {
					broken = adoptWatch
					watch.Reset(broken)
				}
				continue
			}
			a.log.Warn("the index of what others left is broken, and begun anew; meanwhile that is not found", "err", err)
			watch.Reset(broken)
			broken = min(2*broken, adoptEvery)
		case <-next.C:
		}
		a.adopt(ctx)
		next.Reset(adoptEvery)
	}
}

// adopt takes in the parts that fall to this rank.
func (a *adopter) adopt(ctx context.Context) {
	all, err := a.store.Parts(ctx)
	if err != nil {
		a.log.Warn("what other ranks left in lustre is not looked for now", "err", err)
		return
	}
	var parts []tiers.Part
	for _, p := range all {
		switch rank := fabric.Rank(p.Rank); {
		case rank == a.self:
			a.adoptOne(ctx, p)
		case !a.falls(rank):
		case a.store.HasCatalogue():
			parts = append(parts, p)
		default:
			a.adoptOne(ctx, p)
		}
	}
	if a.store.HasCatalogue() {
		a.takeIn(ctx, parts)
	}
}

// falls tells whether what a rank of another number left is this one's to take
// in.
func (a *adopter) falls(rank fabric.Rank) bool {
	return a.node == nil || !a.node.Has(rank) && a.node.IsFirstHome("", fmt.Sprintf("rank%03d", rank))
}

// takeIn brings the catalogue up to date.
func (a *adopter) takeIn(ctx context.Context, parts []tiers.Part) {
	began := time.Now()
	got, err := a.store.TakeIn(ctx, parts)
	for _, skipped := range got.Skipped {
		a.log.Warn(leftOut, "err", skipped)
	}
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("what other ranks left in lustre is not found; trying again later", "parts", len(parts), "err", err)
		}
		return
	}
	if got.Fresh {
		a.log.Info("taken in", "parts", len(parts), "segments_read", got.Read, "blocks", got.Blocks, "names", got.Names, "bytes", got.Bytes,
			"took", time.Since(began).Round(time.Millisecond).String())
	}
}

// adoptOne takes one part into memory.
func (a *adopter) adoptOne(ctx context.Context, p tiers.Part) {
	began := time.Now()
	got, err := a.store.Adopt(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("what another rank left in lustre is not used; trying again later", "of", p.Rank, "err", err)
		}
		return
	}
	if got.Names == 0 {
		return // nothing that was not adopted before
	}
	a.log.Info("adopted", "of", p.Rank, "incarnation", p.Incarnation, "blocks", got.Blocks, "names", got.Names, "bytes", got.Bytes,
		"took", time.Since(began).Round(time.Millisecond).String())
}
