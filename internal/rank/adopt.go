package rank

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/members"
	"cascadekv/internal/config"
	"cascadekv/tiers"
)

const (
	// adoptQuiet is how long the ranks must have stayed the same before one of
	// them adopts: when a job starts, most are still to come.
	adoptQuiet = 2 * time.Second

	// adoptEvery is how often a rank looks for segments that other jobs have
	// written since.
	adoptEvery = 5 * time.Minute

	// adoptWatch is how often it looks whether its catalogue broke; one that
	// cannot be emptied is tried again later and later.
	adoptWatch = 5 * time.Second

	// firstAdoption is how long the start of a rank that is alone waits for its
	// adoption, so that one with little to adopt begins with all.
	firstAdoption = 3 * time.Second

	never = time.Duration(math.MaxInt64)
)

// adopter adopts the segments of ranks that are no more, of this and of other jobs.
// Each rank recovers those of its own number when it starts, and adopts here those
// that belonged to a process that still lived then; the rest is shared out by the
// ring, all of one number to one rank, so that names find their blocks.
type adopter struct {
	store   *cascade.Store
	self    fabric.Rank
	node    *dht.Node // nil: the rank is alone, and adopts all
	log     *slog.Logger
	changed chan struct{} // capacity 1: ranks came or went, or there are new files
}

func newAdopter(store *cascade.Store, self int, log *slog.Logger) *adopter {
	return &adopter{store: store, self: fabric.Rank(self), log: log, changed: make(chan struct{}, 1)}
}

// wake starts an adoption in a while. It is safe for concurrent use.
func (a *adopter) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// start runs the adopter in the background. For a rank that is alone it returns when
// the first adoption has ended, or takes long.
func (a *adopter) start(c *config.Config, work *background) {
	switch {
	case a.node != nil:
		first := adoptQuiet
		if c.Peers.Ranks > 1 {
			first += members.StartFor // until it hears of the others it would adopt what falls to them
		}
		work.Go(func() { a.run(work.ctx, first, adoptEvery) })
		return
	case c.Lustre.Dir == "" || c.Lustre.Index == "off": // all was recovered
		work.Go(func() { a.run(work.ctx, never, never) })
		return
	}
	first := make(chan struct{})
	work.Go(func() {
		a.adopt(work.ctx)
		close(first)
		a.run(work.ctx, adoptEvery, adoptEvery)
	})
	select {
	case <-first:
	case <-time.After(firstAdoption):
		a.log.Info("segments of other ranks and jobs are being adopted; until then their blocks are misses")
	case <-work.ctx.Done():
	}
}

// run adopts until ctx ends, first after the given time.
func (a *adopter) run(ctx context.Context, first, every time.Duration) {
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
			_, err := a.store.Catalogue()
			if err == nil {
				if broken != adoptWatch {
					broken = adoptWatch
					watch.Reset(broken)
				}
				continue
			}
			a.log.Warn("catalogue index: broken, starting empty; until it is filled, blocks of other ranks and jobs are misses", "err", err)
			watch.Reset(broken)
			broken = min(2*broken, adoptEvery)
		case <-next.C:
		}
		a.adopt(ctx)
		next.Reset(every)
	}
}

// adopt adopts the parts that fall to this rank.
func (a *adopter) adopt(ctx context.Context) {
	all, err := a.store.Parts(ctx)
	if err != nil {
		a.log.Warn("lustre.dir is not searched for segments of other ranks now", "err", err)
		return
	}
	catalogue, _ := a.store.Catalogue()
	var parts []tiers.Part
	for _, p := range all {
		switch rank := fabric.Rank(p.Rank); {
		case rank == a.self:
			a.adoptOne(ctx, p)
		case !a.falls(rank):
		case catalogue:
			parts = append(parts, p)
		default:
			a.adoptOne(ctx, p)
		}
	}
	if catalogue {
		a.catalogue(ctx, parts)
	}
}

// falls reports whether the segments of a rank of another number are this one's to
// adopt.
func (a *adopter) falls(rank fabric.Rank) bool {
	return a.node == nil || !a.node.Has(rank) && a.node.IsFirstHome("", fmt.Sprintf("rank%03d", rank))
}

// catalogue brings the catalogue up to date.
func (a *adopter) catalogue(ctx context.Context, parts []tiers.Part) {
	began := time.Now()
	got, err := a.store.AdoptParts(ctx, parts)
	for _, skipped := range got.Skipped {
		a.log.Warn(skippedFile, "err", skipped)
	}
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("catalogue index: not updated, blocks of other ranks and jobs are misses; trying again later", "parts", len(parts), "err", err)
		}
		return
	}
	if got.Fresh {
		a.log.Info("catalogue index: updated", "parts", len(parts), "segments_read", got.Read, "blocks", got.Blocks, "names", got.Names, "bytes", got.Bytes,
			"took", time.Since(began).Round(time.Millisecond).String())
	}
}

// adoptOne adopts one part into memory.
func (a *adopter) adoptOne(ctx context.Context, p tiers.Part) {
	began := time.Now()
	got, err := a.store.Adopt(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("segments of another rank are not adopted; trying again later", "of", p.Rank, "err", err)
		}
		return
	}
	if got.Names == 0 {
		return // nothing that was not adopted before
	}
	a.log.Info("adopted", "of", p.Rank, "incarnation", p.Incarnation, "blocks", got.Blocks, "names", got.Names, "bytes", got.Bytes,
		"took", time.Since(began).Round(time.Millisecond).String())
}
