package respbench

import (
	"context"
	"errors"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// The sides of a duel.
const (
	sideRank = iota
	sideRedis
	sides
)

// duel is one setting: both subjects in turn, with the same operations.
type duel struct {
	o     Options
	conns int
	loads [sides]*load
	ops   map[op]int // of one phase
	rates map[op]*[sides][]float64
	costs map[op]*[sides]time.Duration
}

func (d *duel) run(ctx context.Context, v *kit.Values, rank, redis *subject, finished func()) (err error) {
	for side, s := range []*subject{rank, redis} {
		l, err := newLoad(s, v, d.o.count(), d.conns)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close()) }()
		d.loads[side] = l
	}
	d.rates = map[op]*[sides][]float64{opSet: {}, opGet: {}}
	d.costs = map[op]*[sides]time.Duration{opSet: {}, opGet: {}}
	if err := d.warmUp(ctx); err != nil {
		return err
	}
	for round := range d.o.Rounds {
		for _, what := range []op{opSet, opGet} {
			if err := d.phases(ctx, what, round); err != nil {
				return err
			}
		}
		finished()
	}
	return errors.Join(d.loads[sideRank].forget(), d.loads[sideRedis].forget())
}

// warmUp stores every value twice and reads it once, and learns how many
// operations fill the budget of the slower side.
func (d *duel) warmUp(ctx context.Context) error {
	d.ops = map[op]int{}
	all := (d.o.count() + d.conns - 1) / d.conns * d.conns // every value, whoever has it
	for _, l := range d.loads {
		if _, err := l.run(ctx, opSet, all); err != nil {
			return err
		}
		for _, what := range []op{opSet, opGet} {
			took, err := l.run(ctx, what, all)
			if err != nil {
				return err
			}
			n := int(float64(all) * float64(d.o.Budget) / float64(took))
			if d.ops[what] == 0 || n < d.ops[what] {
				d.ops[what] = max(n, d.conns)
			}
		}
	}
	for what, n := range d.ops {
		d.ops[what] = n / d.conns * d.conns // the same for every connection
	}
	return nil
}

// phases lets both sides do one operation, first the one and next time the
// other.
func (d *duel) phases(ctx context.Context, what op, round int) error {
	for side := range kit.Order(round, sides) {
		if err := d.phase(ctx, what, side); err != nil {
			return err
		}
	}
	if what == opSet {
		return nil
	}
	for _, l := range d.loads {
		if err := l.check(); err != nil {
			return err
		}
		if !d.o.Verify {
			continue
		}
		if err := l.checkAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *duel) phase(ctx context.Context, what op, side int) error {
	l := d.loads[side]
	if _, err := d.loads[sides-1-side].subject.rest(ctx); err != nil {
		return err
	}
	before, err := l.subject.rest(ctx)
	if err != nil {
		return err
	}
	took, err := l.run(ctx, what, d.ops[what])
	if err != nil {
		return errors.Join(err, l.subject.Alive())
	}
	after, err := l.subject.rest(ctx)
	if err != nil {
		return err
	}
	rates, costs := d.rates[what], d.costs[what]
	rates[side] = append(rates[side], float64(d.ops[what])*float64(d.o.Size)/kit.Mega/took.Seconds())
	costs[side] += after - before
	return nil
}

// setting sums one operation up.
func (d *duel) setting(what op) Setting {
	rates, costs := d.rates[what], d.costs[what]
	s := Setting{Op: string(what), Conns: d.conns, Operations: d.ops[what]}
	s.Ratios, s.Ratio = kit.Ratios(rates[sideRank], rates[sideRedis])
	s.RatioOfMedians = kit.Round(kit.Median(rates[sideRank]) / kit.Median(rates[sideRedis]))
	bytes := float64(len(s.Ratios)) * float64(d.ops[what]) * float64(d.o.Size)
	side := func(i int) Side {
		return Side{Figure: kit.FigureOf(rates[i]), CPUPerGB: kit.Round(costs[i].Seconds() / (bytes / kit.Giga))}
	}
	s.Rank, s.Redis = side(sideRank), side(sideRedis)
	return s
}
