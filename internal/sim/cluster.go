package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
	fabricsim "cascadekv/dht/fabric/sim"
	"cascadekv/dht/ring"
)

const (
	// All ranks share this machine's processors, so a call may wait long for
	// its turn. It is no loss then.
	callDeadline = time.Minute

	// settle is how long former homes are asked; the simulation's clock jumps
	// over it when all entries have arrived.
	settle = time.Hour
)

// cluster is all ranks of a simulation.
type cluster struct {
	o       Options
	names   *names
	world   *fabricsim.World
	moved   atomic.Int64 // block bytes that no get asked for
	ahead   atomic.Int64 // nanoseconds of the clock before the real one
	readers chan int     // numbers of free rooms in names

	ring   atomic.Pointer[ring.Ring] // of the ranks that there are, or will be in a moment
	ranks  []fabric.Rank             // alive, ascending
	nodes  map[fabric.Rank]*dht.Node // of the ranks, and of dead ones
	locals map[fabric.Rank]*local
}

func newCluster(o Options) (*cluster, error) {
	readers := 4 * runtime.GOMAXPROCS(0)
	s, err := newNames(o, readers)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		o: o, names: s, world: fabricsim.New(fabricsim.Options{Seed: o.Seed}), readers: make(chan int, readers),
		nodes: map[fabric.Rank]*dht.Node{}, locals: map[fabric.Rank]*local{},
	}
	for i := range readers {
		c.readers <- i
	}
	for i := range o.Ranks {
		c.ranks = append(c.ranks, fabric.Rank(i))
	}
	first, err := ring.New(c.ranks, o.Replicas)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sim: %w", err), s.unmap())
	}
	c.ring.Store(first)
	return c, nil
}

// close ends all ranks.
func (c *cluster) close() error {
	var mu sync.Mutex
	var errs []error
	var wait sync.WaitGroup
	for _, n := range c.nodes {
		wait.Go(func() {
			if err := n.Close(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("sim: %w", err))
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return errors.Join(errs...) // the slab may be in use
	}
	return c.names.unmap()
}

// add starts a rank, without peers yet.
func (c *cluster) add(r fabric.Rank, mine []int) error {
	l := newLocal(r, c.names, mine)
	n, err := dht.New(dht.Options{
		Fabric: counter{c.world.Join(r, 1), &c.moved}, Incarnation: 1, Replicas: c.o.Replicas,
		CallDeadline: callDeadline, ReadDeadline: callDeadline, Settle: settle,
		Ring: c.shared, Now: c.now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}, l)
	if err != nil {
		return fmt.Errorf("sim: %v: %w", r, err)
	}
	c.nodes[r], c.locals[r] = n, l
	return nil
}

// now is the clock of all ranks.
func (c *cluster) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// shared is dht.Options.Ring: the nodes' members are the same, so one ring is
// enough. The first ranks begin with the ring of all, which they would have
// after a moment anyway; the one that joins later begins alone.
func (c *cluster) shared(prev *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error) {
	r := c.ring.Load()
	switch {
	case prev == nil && r.Has(ranks[0]):
		return r, nil
	case prev == nil:
		return ring.New(ranks, c.o.Replicas)
	case r.Len() == len(ranks) && !slices.ContainsFunc(ranks, func(k fabric.Rank) bool { return !r.Has(k) }):
		return r, nil
	}
	return prev.Next(ranks)
}

// start brings up the first ranks and introduces them to each other.
func (c *cluster) start(ctx context.Context) error {
	mine := make([][]int, c.o.Ranks)
	for i, owner := range c.names.owners {
		mine[owner] = append(mine[owner], i)
	}
	for i, r := range c.ranks {
		if err := c.add(r, mine[i]); err != nil {
			return err
		}
	}
	return c.announce(ctx, "start", members(c.ranks, fabric.Alive))
}

func members(ranks []fabric.Rank, state fabric.State) []dht.Member {
	list := make([]dht.Member, len(ranks))
	for i, r := range ranks {
		list[i] = dht.Member{Rank: r, Incarnation: 1, State: state}
	}
	return list
}

// announce gives members to all ranks, in random order and some at a time.
func (c *cluster) announce(ctx context.Context, phase string, changed []dht.Member) error {
	order := slices.Clone(c.ranks)
	c.draw(phase, 0).Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
	return c.each(ctx, phase, len(order), func(i int) error {
		c.nodes[order[i]].SetMembers(changed...)
		return nil
	})
}

// draw is the source of chance of one step of a phase. It does not depend on
// the order in which steps happen to run.
func (c *cluster) draw(phase string, step int) *rand.Rand {
	seed := uint64(step) + 1
	for _, b := range []byte(phase) {
		seed = (seed ^ uint64(b)) * 0x100000001b3
	}
	return rand.New(rand.NewPCG(c.o.Seed, seed))
}

// each calls f for 0 to n-1, some at a time, until one fails.
func (c *cluster) each(ctx context.Context, phase string, n int, f func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var wait sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					cancel(err)
				}
				if d := int(done.Add(1)); d == n || d%64 == 0 {
					c.o.Progress(phase, d, n)
				}
			}
		})
	}
	wait.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("sim: %s: %w", phase, context.Cause(ctx))
	}
	return nil
}
