package catalogue

import (
	"cmp"
	"context"
	"time"

	"cascadekv/lustre/index"
	"cascadekv/lustre/tuner"
	"cascadekv/tiers"
)

// TuneOptions say when the index is tuned. The zero value is useful.
type TuneOptions struct {
	Tuner tuner.Options
	Every time.Duration // between two looks at what was done; default 10 s
	Quiet time.Duration // without a look-up before a change is made; default 5 s

	// Report is called with each decision that the log should have: a change that is
	// proposed, kept out or withdrawn, and with made one that was made or, with an
	// error, could not be. It must return soon. May be nil.
	Report func(d tuner.Decision, made bool, err error)
}

// Tuning is what the tuner thinks of the index, for people.
type Tuning struct {
	Last     tuner.Decision           // of the last Step
	Best     tuner.Setting            // under which the work of the window would cost least
	BestCost float64                  // predicted pages for each operation under it
	Verdicts [tuner.Change + 1]uint64 // Steps, by verdict
}

// state is t in the words of package tiers.
func (t *Tuning) state() *tiers.Tuner {
	m := t.Last.Mix
	s := &tiers.Tuner{
		Verdicts: map[string]uint64{}, Mix: map[string]float64{"put": m.Put, "hit": m.Hit, "range": m.Range, "miss": m.Miss},
		Scanned: m.Scanned, Cost: t.Last.Before, Best: t.BestCost, BestT: t.Best.T, BestK: t.Best.K,
	}
	for v, n := range t.Verdicts {
		s.Verdicts[tuner.Verdict(v).String()] = n
	}
	return s
}

// judged is what a Step adds to t. The tuner names another setting than the
// index's only where that is worth a change; here is what it compared with. An
// empty window has no cost.
func (t Tuning) judged(d tuner.Decision, tree tuner.Tree, b tuner.Bounds) *Tuning {
	t.Last, t.Best, t.BestCost = d, d.From, 0
	if d.Ops > 0 {
		t.Best, t.BestCost = tree.Best(b, d.Mix)
		t.Last.Before = tree.Cost(d.From, d.Mix) // not given while the window fills
	}
	t.Verdicts[d.Verdict]++
	return &t
}

// Tune has the index shaped for the work it does until ctx ends: it counts, lets
// the tuner judge, and makes its changes at quiet moments. At most one call runs
// at a time. Errors: tuner.ErrBadOption.
func (c *Catalogue) Tune(ctx context.Context, o TuneOptions) error {
	o.Every = cmp.Or(max(o.Every, 0), 10*time.Second)
	o.Quiet = cmp.Or(max(o.Quiet, 0), 5*time.Second)
	if o.Report == nil {
		o.Report = func(tuner.Decision, bool, error) {}
	}
	stats := c.index.Stats()
	start := tuner.Setting{T: stats.SizeRatio, K: stats.Runs}
	if start.T == 0 { // too busy to say, or broken
		start = tuner.Default
	}
	t, err := tuner.New(o.Tuner, start)
	if err != nil {
		return err
	}
	tick := time.NewTicker(o.Every)
	defer tick.Stop()
	last, tuning := countsOf(&stats), &Tuning{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		stats = c.index.Stats()
		now := countsOf(&stats)
		t.Observe(now.Sub(last))
		last = now
		if stats.SizeRatio == 0 {
			continue
		}
		tree := treeOf(&stats)
		d := t.Step(tree)
		tuning = tuning.judged(d, tree, o.Tuner.Bounds)
		c.tuning.Store(tuning)
		if d.Verdict == tuner.Change || d.Verdict == tuner.Keep || d.Verdict == tuner.Withdrawn {
			o.Report(d, false, nil)
		}
		if p, ok := t.Pending(); ok && c.quiet(o.Quiet) {
			err := c.index.Retune(ctx, p.To.T, p.To.K)
			t.Done(p, err)
			o.Report(p, true, err)
		}
	}
}

// countsOf is what requests had the index do, as the tuner counts it. What fills
// an empty index is left out: it comes once, is not merged while it comes, and
// is not typical of the work that follows.
func countsOf(s *index.Stats) tuner.Counts {
	return tuner.Counts{Puts: s.Puts - s.Filled, Hits: s.Points, Ranges: s.Ranges, Misses: s.Absent, Scanned: s.Scanned}
}

// treeOf is the form of the index. What an entry takes on disk depends on the
// length of names.
func treeOf(s *index.Stats) tuner.Tree {
	t := tuner.Tree{Shape: tuner.Pebble, Entries: int64(s.Entries)}
	var bytes int64
	for _, l := range s.Levels {
		bytes += l.Bytes
	}
	if s.Entries > 0 && bytes > 0 {
		t.EntryBytes = float64(bytes) / float64(s.Entries)
	}
	return t
}

// quiet reports whether nobody has looked names up for some time.
func (c *Catalogue) quiet(least time.Duration) bool {
	return time.Now().UnixNano()-c.asked.Load() >= int64(least)
}
