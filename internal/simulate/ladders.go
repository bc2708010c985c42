package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/policy"
)

// Ladders is what was found of ladders.
type Ladders struct {
	Requests          int
	Blocks            int64   // references
	UniqueBlocks      int     // distinct blocks
	UnlimitedHitRatio float64 // of blocks, of a level that keeps everything
	PromptTokens      int64
	AnswerTokens      int64
	Span              time.Duration  // from the first request to the last
	Results           []LadderResult // in the order of the ladders
}

// LadderResult is one ladder. Lists are by level.
type LadderResult struct {
	Hits    []int64       // references that each level served
	Entered []int64       // blocks that were written to each level
	TTFT    Quantiles     // zero without a model
	End     time.Duration // from the first request to the last first token; 0 without a model
}

// RunLadders simulates each of some ladders; one without levels hits nothing. Of o, Policies and
// Capacities do not count, and TTFT, if any, has a load for each level. Ladders that
// differ in room beyond all blocks are simulated once. Errors: as those of Run.
func RunLadders(ctx context.Context, o Options, ladders [][]Level) (r Ladders, err error) {
	if o, err = o.common(); err != nil {
		return Ladders{}, err
	}
	if err := checkLadders(o, ladders); err != nil {
		return Ladders{}, err
	}
	s, err := newSpool(ctx, o.Trace, o.Requests, o.Dir)
	if err != nil {
		return Ladders{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.references == 0 {
		return Ladders{}, ErrNoBlocks
	}
	g := &grid{o: o, s: s}
	of := g.addLadders(ladders)
	if err := g.run(ctx); err != nil {
		return Ladders{}, err
	}
	r = Ladders{
		Requests: s.requests, Blocks: s.references, UniqueBlocks: s.unique, UnlimitedHitRatio: float64(s.unlimited) / float64(s.references),
		PromptTokens: s.prompts, AnswerTokens: s.answers, Span: s.last,
	}
	for _, c := range of {
		one := LadderResult{Hits: slices.Clone(c.hitsOf), Entered: slices.Clone(c.entered), End: time.Duration(c.end * float64(time.Second))}
		if c.ttft != nil {
			one.TTFT = *c.ttft
		}
		r.Results = append(r.Results, one)
	}
	return r, nil
}

// maxLevels bounds a ladder, so that the model keeps a bit for each.
const maxLevels = 64

func checkLadders(o Options, ladders [][]Level) error {
	for _, levels := range ladders {
		if len(levels) > maxLevels || o.TTFT != nil && len(levels) > len(o.TTFT.Loads) {
			return fmt.Errorf("%w: a ladder of %d levels; give each a load rate, and at most %d", ErrBadOptions, len(levels), maxLevels)
		}
		for _, one := range levels {
			if _, err := policy.New(one.Policy, 0); err != nil {
				return fmt.Errorf("%w: %w", ErrBadOptions, err)
			}
		}
	}
	return nil
}

// addLadders makes a cell for each that differs, and returns that of each.
func (g *grid) addLadders(ladders [][]Level) (of []*cell) {
	known := map[string]*cell{}
	for _, levels := range ladders {
		c := &cell{levels: slices.Clone(levels)}
		for i := range c.levels {
			room := &c.levels[i].Blocks
			if *room = max(0, min(*room, g.s.unique)); fullAbove(c.levels[:i], g.s.unique) {
				*room = 0 // nothing leaves a level that has room for all
			}
			c.capacity += *room
		}
		name := fmt.Sprint(c.levels)
		if known[name] == nil {
			known[name] = c
			g.cells = append(g.cells, c)
		}
		of = append(of, known[name])
	}
	return of
}

// fullAbove reports whether one of some levels has room for all blocks.
func fullAbove(levels []Level, unique int) bool {
	return slices.ContainsFunc(levels, func(l Level) bool { return l.Blocks >= unique })
}

// count has what the levels of a ladder counted.
func (c *cell) count(l *ladder) {
	c.hitsOf, c.entered = make([]int64, len(c.levels)), make([]int64, len(c.levels))
	for _, lv := range l.levels {
		c.hitsOf[lv.index], c.entered[lv.index] = lv.hits, lv.entered
	}
}
