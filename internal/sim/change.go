package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/ring"
)

// change is what a change of the ranks came to.
type change struct {
	moved      int // entries that came to a directory
	statements int
	blockBytes int64
	seconds    float64
	load       verdict
}

// change makes ranks those that there are, announces changed to them all, and waits
// until their directories have settled. Gets go on meanwhile.
func (c *cluster) change(ctx context.Context, phase string, ranks, changed []fabric.Rank, state fabric.State) (*change, error) {
	old := c.ring.Load()
	next, err := old.Next(ranks)
	if err != nil {
		return nil, fmt.Errorf("sim: %s: %w", phase, err)
	}
	ch := &change{}
	announced, moved := c.announced(), c.moved.Load()
	c.ring.Store(next)
	stayed := slices.DeleteFunc(slices.Clone(ranks), func(r fabric.Rank) bool { return !old.Has(r) })
	c.ranks = ranks
	began := time.Now()
	stop := c.load(ctx, phase+" load", stayed, &ch.load)
	err = c.announce(ctx, phase, members(changed, state))
	if err == nil {
		err = c.until(ctx, c.due(old, next)) // both, until the former homes forget
	}
	ch.seconds = time.Since(began).Seconds()
	stop()
	for _, r := range ranks {
		c.nodes[r].Settled(ctx) // of what the load changed last
	}
	if err != nil {
		return nil, err
	}
	ch.moved = c.entries() - sum(c.due(old))
	ch.statements, ch.blockBytes = c.announced()-announced, c.moved.Load()-moved
	c.ahead.Add(int64(settle))
	return ch, c.until(ctx, c.due(next))
}

// due counts the entries that each living rank must have when the homes of a
// name are those of all the given rings.
func (c *cluster) due(rings ...*ring.Ring) map[fabric.Rank]int {
	alive, due := c.alive(), map[fabric.Rank]int{}
	for _, r := range c.ranks {
		due[r] = 0
	}
	var homes []fabric.Rank
	for i, owner := range c.names.owners {
		if !alive(owner) {
			continue
		}
		homes = homes[:0]
		for _, r := range rings {
			for _, h := range c.homes(r, i) {
				if alive(h) && !slices.Contains(homes, h) {
					homes = append(homes, h)
				}
			}
		}
		for _, h := range homes {
			due[h]++
		}
	}
	return due
}

// until waits until every directory has as many entries as are due.
func (c *cluster) until(ctx context.Context, due map[fabric.Rank]int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		at := slices.IndexFunc(c.ranks, func(r fabric.Rank) bool { return c.nodes[r].Stats().Entries != due[r] })
		if at < 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r := c.ranks[at]
			return fmt.Errorf("%w: %v has %d entries, %d are due: %w", ErrUnsettled, r, c.nodes[r].Stats().Entries, due[r], ctx.Err())
		}
	}
}

func (c *cluster) entries() (n int) {
	for _, r := range c.ranks {
		n += c.nodes[r].Stats().Entries
	}
	return n
}

// announced counts the statements that homes took in from other ranks.
func (c *cluster) announced() (n int) {
	for _, node := range c.nodes {
		n += int(node.Stats().Announced)
	}
	return n
}

func sum(counts map[fabric.Rank]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}
