package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
	"cascadekv/dht/ring"
)

// Run simulates. When answers are wrong, or names of living ranks are not
// found, the result says how many, and the error is ErrWrong or ErrUnknown.
// Other errors: ErrOptions, ErrUnsettled, ctx's; they come without a result.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	began, cpu := time.Now(), cpuSeconds()
	c, err := newCluster(o)
	if err != nil {
		return nil, err
	}
	res := &Result{Ranks: o.Ranks, Replicas: o.Replicas, Names: len(c.names.keys), ChainKeys: o.Chain, Seed: o.Seed}
	err = c.run(ctx, res)
	if err = errors.Join(err, c.close()); err != nil {
		return nil, err
	}
	res.Seconds, res.CPUSeconds = time.Since(began).Seconds(), cpuSeconds()-cpu
	switch {
	case res.WrongAnswers > 0:
		return res, fmt.Errorf("%w: %d", ErrWrong, res.WrongAnswers)
	case res.UnknownNames > 0:
		return res, fmt.Errorf("%w: %d", ErrUnknown, res.UnknownNames)
	}
	return res, nil
}

func (c *cluster) run(ctx context.Context, res *Result) error {
	var settled, chains verdict
	var messages histogram
	steps := []func(context.Context) error{
		c.start,
		c.publish,
		func(context.Context) error { c.balance(res); return nil },
		func(ctx context.Context) error { return c.getAll(ctx, "get", &settled) },
		func(ctx context.Context) error { return c.getChains(ctx, "get chains", &chains, &messages) },
		func(ctx context.Context) error { return c.getAbsent(ctx, "get what is absent", &settled) },
		func(ctx context.Context) error { return c.join(ctx, res) },
		func(ctx context.Context) error { return c.getAll(ctx, "get after the join", &settled) },
		func(ctx context.Context) error { return c.leave(ctx, res) },
		func(ctx context.Context) error { return c.getAll(ctx, "get after the death", &settled) },
	}
	for _, step := range steps {
		if err := c.patiently(ctx, step); err != nil {
			return err
		}
	}
	res.Gets, _ = settled.hops.sum()
	res.LookupsPerGet, res.LookupsMax = settled.lookups.mean(), settled.lookups.quantile(1)
	res.ReadsPerGet = settled.reads.mean()
	res.HopsP50, res.HopsMax = settled.hops.quantile(0.5), settled.hops.quantile(1)
	count, total := messages.sum()
	res.Chains, res.ChainPerGet = count, ratio(float64(total), float64(count*c.o.Chain))
	res.ChainMessagesP50, res.ChainMessagesMax = messages.quantile(0.5), messages.quantile(1)
	res.AbsentAsked = c.o.Ranks
	res.WrongAnswers += int(settled.wrong.Load() + chains.wrong.Load())
	res.UnknownNames = int(settled.unknown.Load() + chains.unknown.Load())
	return nil
}

// patiently bounds a step.
func (c *cluster) patiently(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Patience)
	defer cancel()
	return step(ctx)
}

// publish lets every rank publish its names to their homes, and waits for them.
func (c *cluster) publish(ctx context.Context) error {
	err := c.each(ctx, "publish", len(c.ranks), func(i int) error {
		n := c.nodes[c.ranks[i]]
		n.Publish(c.locals[c.ranks[i]].all()...)
		n.Settled(ctx)
		return nil
	})
	if err != nil {
		return err
	}
	return c.until(ctx, c.due(c.ring.Load()))
}

// balance looks at how even the ring and the directories are.
func (c *cluster) balance(res *Result) {
	var owned, homes, entries []int
	for _, s := range c.ring.Load().Shares() {
		owned, homes = append(owned, s.Partitions), append(homes, s.Homes)
	}
	for _, r := range c.ranks {
		n := c.nodes[r].Stats().Entries
		entries = append(entries, n)
		res.Entries += n
	}
	res.BalanceMaxOverMean, res.BalanceHomes, res.BalanceEntries = unevenness(owned), unevenness(homes), unevenness(entries)
}

// join lets one more rank join.
func (c *cluster) join(ctx context.Context, res *Result) error {
	r := fabric.Rank(c.o.Ranks)
	if err := c.add(r, nil); err != nil {
		return err
	}
	all := append(slices.Clone(c.ranks), r)
	ch, err := c.change(ctx, "join", all, all, fabric.Alive)
	if err != nil {
		return err
	}
	before := float64(res.Entries)
	res.JoinMovedEntries, res.JoinMovedShare = ch.moved, ratio(float64(ch.moved), before)
	res.JoinMovedShareTimesN = res.JoinMovedShare * float64(res.Ranks)
	res.JoinStatements, res.JoinBlockBytes, res.JoinSeconds = ch.statements, ch.blockBytes, ch.seconds
	res.JoinGets, res.JoinMisses, res.JoinHopsMax = int(ch.load.asked.Load()), int(ch.load.unknown.Load()), ch.load.hops.quantile(1)
	res.JoinUpdates = int(ch.load.updates.Load())
	res.WrongAnswers += int(ch.load.wrong.Load())
	return nil
}

// leave lets one rank die that has names.
func (c *cluster) leave(ctx context.Context, res *Result) error {
	victim := c.names.owners[c.draw("leave", 0).IntN(len(c.names.owners))]
	before := c.ring.Load()
	for i, owner := range c.names.owners {
		switch {
		case owner == victim:
			res.LeaveLostNames++
		case slices.Contains(c.homes(before, i), victim):
			res.LeaveFoundAgain++
		}
	}
	c.world.Kill(victim)
	left := slices.DeleteFunc(slices.Clone(c.ranks), func(r fabric.Rank) bool { return r == victim })
	ch, err := c.change(ctx, "leave", left, []fabric.Rank{victim}, fabric.Gone)
	if err != nil {
		return err
	}
	entries, ranks := float64(res.Entries), float64(len(left)+1)
	res.LeaveLostShareTimesN = ratio(float64(res.LeaveLostNames), float64(res.Names)) * ranks
	res.LeaveMovedEntries, res.LeaveMovedShare = ch.moved, ratio(float64(ch.moved), entries)
	res.LeaveMovedShareTimesN = res.LeaveMovedShare * ranks
	res.LeaveStatements, res.LeaveBlockBytes, res.LeaveSeconds = ch.statements, ch.blockBytes, ch.seconds
	res.LeaveGets, res.LeaveMisses, res.LeaveHopsMax = int(ch.load.asked.Load()), int(ch.load.unknown.Load()), ch.load.hops.quantile(1)
	res.LeaveUpdates = int(ch.load.updates.Load())
	res.WrongAnswers += int(ch.load.wrong.Load())
	return nil
}

func (c *cluster) homes(r *ring.Ring, i int) []fabric.Rank {
	return r.Homes(r.Partition(namespace, c.names.keys[i]))
}

// cpuSeconds is what this process has used so far, 0 if that is unknown.
func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
