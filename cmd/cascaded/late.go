package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/config"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// firstAdoption is how long a start waits for what others left, so that a rank
// with little of it begins with all. More comes while it serves.
const firstAdoption = 3 * time.Second

// openingEnds is how long an opening may go on when it has been called off: it may
// wait for a file system that does not answer.
const openingEnds = 5 * time.Second

// open puts a rank together. When ctx ends it returns soon, whatever the opening
// waits for; nothing was served then, and the tiers are as a crash would leave
// them. What an earlier program handed over must be drained, and is waited for.
func (p program) open(ctx context.Context, c config.Config, password string, log *slog.Logger) (rank, error) {
	if p.state != nil {
		return p.assemble(ctx, c, password, log)
	}
	return openInTime(ctx, openingEnds, func() (rank, error) { return p.assemble(ctx, c, password, log) })
}

// openInTime calls open and waits for it, but no longer than so long after the end
// of ctx.
func openInTime(ctx context.Context, after time.Duration, open func() (rank, error)) (rank, error) {
	type outcome struct {
		rank rank
		err  error
	}
	opened := make(chan outcome, 1)
	go func() {
		r, err := open()
		opened <- outcome{r, err}
	}()
	select {
	case o := <-opened:
		return o.rank, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-opened:
		return o.rank, o.err
	case <-time.After(after):
		return nil, fmt.Errorf("the start does not end, perhaps for a file system that does not answer; it was given up: %w", ctx.Err())
	}
}

// adoptAlone takes in what others left, and until work ends what they add.
func (r *openedRank) adoptAlone(work context.Context) {
	r.adopter = newAdopter(r.store, fabric.Rank(r.config.Rank), r.log)
	if r.config.Lustre.Dir == "" || r.config.Lustre.Index == "off" {
		return // all was recovered
	}
	first := make(chan struct{})
	r.background.Go(func() {
		r.adopter.adopt(work)
		close(first)
		r.adopter.run(work, adoptEvery)
	})
	select {
	case <-first:
	case <-time.After(firstAdoption):
		r.log.Info("what other ranks and jobs left in lustre is being taken in; until then it is not found")
	case <-work.Done():
	}
}

// watchLate adopts what did not answer at the start when it does, until work ends.
func (r *openedRank) watchLate(work context.Context, cold tiers.Tier) {
	t, ok := cold.(*lustre.Tier)
	if !ok {
		return
	}
	n, one := t.Late()
	if n > 0 {
		r.log.Warn("lustre files do not answer: their blocks are misses until they do; check the file system's servers", "files", n, "one", one)
	}
	adopt := r.adopter.wake
	switch {
	case r.peers != nil:
		adopt = r.peers.adopter.wake
	case r.config.Lustre.Index == "off":
		adopt = func() { r.adopter.adopt(work) }
	}
	r.background.Go(func() {
		look := time.NewTicker(lookForLate)
		defer look.Stop()
		for {
			select {
			case <-work.Done():
				return
			case <-t.Arrived():
				adopt()
			case <-look.C:
			}
			was := n
			if n, _ = t.Late(); was > 0 && n == 0 {
				r.log.Info("all lustre files that did not answer have answered, and are taken in")
			}
		}
	})
}

// lookForLate is how often a rank looks whether everything has answered, to say so.
const lookForLate = 2 * time.Second
