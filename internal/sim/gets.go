package sim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// outcome is what became of a get.
type outcome int

const (
	right   outcome = iota
	unknown         // nobody is known to have it, or nobody gave it
	wrong           // bytes or an owner that were never published
)

// get locates a name from a rank that does not have it, and reads it.
func (c *cluster) get(ctx context.Context, asker fabric.Rank, i int) (outcome, *cost) {
	ctx, spent := withCost(ctx)
	found := c.nodes[asker].Locate(ctx, namespace, c.names.keys[i:i+1])
	return c.read(ctx, asker, i, found[0]), spent
}

// read reads a located block and compares it with what was published.
func (c *cluster) read(ctx context.Context, asker fabric.Rank, i int, copies []directory.Statement) outcome {
	if copies == nil {
		return unknown
	}
	for _, s := range copies {
		if s.Owner != c.names.owners[i] || s.Info != c.names.infos[i] {
			return wrong
		}
	}
	reader := <-c.readers
	defer func() { c.readers <- reader }()
	room := c.names.room(reader)
	clear(room)
	// The simulated fabric never writes to room after it returned.
	one := []directory.Read{{Copies: copies, Dst: room}}
	if c.nodes[asker].Read(ctx, one); one[0].Err != nil {
		return unknown
	}
	if !c.names.right(room, i) {
		return wrong
	}
	return right
}

// asker draws a living rank that is not the owner of a name.
func (c *cluster) asker(phase string, i int) fabric.Rank {
	rng := c.draw(phase, i)
	for {
		if r := c.ranks[rng.IntN(len(c.ranks))]; r != c.names.owners[i] {
			return r
		}
	}
}

// verdict gathers what gets came to. It is safe for concurrent use.
type verdict struct {
	asked, unknown, wrong atomic.Int64
	updates               atomic.Int64 // blocks that moved meanwhile
	lookups, reads, hops  histogram
}

func (v *verdict) add(o outcome, spent *cost) {
	v.asked.Add(1)
	switch o {
	case unknown:
		v.unknown.Add(1)
	case wrong:
		v.wrong.Add(1)
	}
	v.lookups.add(int(spent.calls.Load()))
	v.reads.add(int(spent.reads.Load()))
	v.hops.add(spent.hops())
}

// getAll gets every name whose owner lives, once.
func (c *cluster) getAll(ctx context.Context, phase string, v *verdict) error {
	alive := c.alive()
	return c.each(ctx, phase, len(c.names.keys), func(i int) error {
		if alive(c.names.owners[i]) {
			v.add(c.get(ctx, c.asker(phase, i), i))
		}
		return nil
	})
}

// getAbsent asks every rank once for a name that nobody published.
func (c *cluster) getAbsent(ctx context.Context, phase string, v *verdict) error {
	return c.each(ctx, phase, len(c.ranks), func(i int) error {
		key := fmt.Sprintf("absent %d", i)
		if c.nodes[c.ranks[i]].Locate(ctx, namespace, []string{key})[0] != nil {
			v.wrong.Add(1)
		}
		return nil
	})
}

// getChains gets every chain at once from a rank that has none of it, and
// counts the messages that locating it takes.
func (c *cluster) getChains(ctx context.Context, phase string, v *verdict, messages *histogram) error {
	keys := c.names.keys
	return c.each(ctx, phase, len(keys)/c.names.chain, func(k int) error {
		first := k * c.names.chain
		asker := c.asker(phase, first)
		ctx, spent := withCost(ctx)
		found := c.nodes[asker].Locate(ctx, namespace, keys[first:first+c.names.chain])
		messages.add(int(spent.calls.Load()))
		for i, copies := range found {
			ctx, each := withCost(ctx)
			v.add(c.read(ctx, asker, first+i, copies), each)
		}
		return nil
	})
}

func (c *cluster) alive() func(fabric.Rank) bool {
	r := c.ring.Load()
	return r.Has
}

// updateEvery is how many gets a load does for each block that it moves.
const updateEvery = 8

// load gets random names from ranks in askers until it is stopped. Now and then
// it moves a block in its owner's memory, which is stated to the homes that it knows
// of; who comes before them has to ask the owner.
func (c *cluster) load(ctx context.Context, phase string, askers []fabric.Rank, v *verdict) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	alive := c.alive()
	var wait sync.WaitGroup
	for worker := range 2 {
		wait.Go(func() {
			rng := c.draw(phase, worker)
			for n := 1; ctx.Err() == nil; n++ {
				i, asker := rng.IntN(len(c.names.keys)), askers[rng.IntN(len(askers))]
				if owner := c.names.owners[i]; owner == asker || !alive(owner) {
					continue
				}
				if n%updateEvery == 0 {
					owner := c.names.owners[i]
					c.nodes[owner].Publish(c.locals[owner].change(c.names.keys[i], false))
					v.updates.Add(1)
					continue
				}
				o, spent := c.get(ctx, asker, i)
				if ctx.Err() == nil || o == wrong { // a get that was stopped found nothing
					v.add(o, spent)
				}
			}
		})
	}
	return func() {
		cancel()
		wait.Wait()
	}
}
