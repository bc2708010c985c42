package tuner

import (
	"cmp"
	"fmt"
	"math"
)

// Options of a Tuner. The zero value is useful.
type Options struct {
	Bounds Bounds
	// Window is the number of operations that count; default 32768: a few
	// dozen requests of some hundred blocks, enough for the rare kinds of
	// operation to be counted with an error of a few per cent.
	Window int
	// Threshold is the shift of the mix that is judged, above 0, below 1;
	// default 0.1. Smaller ones find noise.
	Threshold float64
	// MinGain is the part of the cost that a change must save, above 0, below
	// 1; default 0.05. It pays for reopening, and keeps two settings that are
	// as good as each other from taking turns.
	MinGain float64
	// MinOps is the least number of operations between two changes; default
	// 4 · Window.
	MinOps int
}

func (o Options) withDefaults() Options {
	o.Bounds = o.Bounds.withDefaults()
	o.Window = cmp.Or(o.Window, 1<<15)
	o.Threshold = cmp.Or(o.Threshold, 0.1)
	o.MinGain = cmp.Or(o.MinGain, 0.05)
	o.MinOps = cmp.Or(o.MinOps, 4*o.Window)
	return o
}

func (o Options) check() error {
	if o.Window < buckets || o.MinOps < 1 || !(o.Threshold > 0 && o.Threshold < 1) || !(o.MinGain > 0 && o.MinGain < 1) {
		return fmt.Errorf("%w: window of %d operations (%d or more), %d between changes (1 or more), threshold %v and gain %v (above 0, below 1)",
			ErrBadOption, o.Window, buckets, o.MinOps, o.Threshold, o.MinGain)
	}
	return o.Bounds.check()
}

// Tuner chooses T and K for one index.
type Tuner struct {
	opt     Options
	window  *window
	current Setting
	ops     uint64 // seen in all
	serial  uint64 // of the last decision that proposed something

	judged     Mix // what the last judgement was made of
	judgedTree Tree
	ever       bool   // something was judged
	since      uint64 // ops when the shift was first seen; 0: there is none

	lastChange uint64 // ops when a change was made or refused
	changed    bool
	pending    Decision
}

// New returns a Tuner for an index that has the setting start. Errors:
// ErrBadOption.
func New(o Options, start Setting) (*Tuner, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if start.T < 2 || start.K < 1 {
		return nil, fmt.Errorf("%w: start at %v", ErrBadOption, start)
	}
	return &Tuner{opt: o, window: newWindow(o.Window), current: start}, nil
}

// Observe counts operations.
func (t *Tuner) Observe(c Counts) {
	t.window.add(c)
	t.ops += c.Ops()
}

// Setting is what the index has: the start, or the last change that was Done.
func (t *Tuner) Setting() Setting { return t.current }

// Step judges the work of the window for an index of the given form. It is
// cheap unless the mix shifted; call it as often as is convenient.
func (t *Tuner) Step(tree Tree) Decision {
	tree = tree.withDefaults()
	mix := t.window.mix(buckets)
	d := Decision{Ops: t.ops, From: t.current, To: t.current, Mix: mix, Entries: tree.Entries}
	if !t.window.full() {
		d.Verdict = Filling
		return d
	}
	if t.ever {
		d.Shift = tree.shift(t.current, t.judged, mix)
	} else {
		d.Shift = 1
	}
	d.Before = tree.Cost(t.current, mix)
	d.After = d.Before
	if d.Shift < t.opt.Threshold && !t.resized(tree) {
		t.since = 0
		d.Verdict = Steady
		return d
	}
	if !t.settled(tree, mix) {
		d.Verdict = Unsettled
		return d
	}
	return t.judge(tree, d)
}

// resized reports whether the number of entries has doubled or halved since
// the last judgement, or has changed what the work costs: that comes in steps,
// with each new level.
func (t *Tuner) resized(tree Tree) bool {
	if tree.Entries >= 2*t.judgedTree.Entries || 2*tree.Entries <= t.judgedTree.Entries {
		return true
	}
	was := t.judgedTree.Cost(t.current, t.judged)
	return math.Abs(tree.Cost(t.current, t.judged)-was) >= t.opt.MinGain*was
}

// settled reports whether the mix has stopped moving, or a window has passed
// since it began to.
func (t *Tuner) settled(tree Tree, mix Mix) bool {
	if t.since == 0 {
		t.since = max(t.ops, 1)
	}
	return tree.shift(t.current, t.window.mix(buckets/4), mix) < t.opt.Threshold || t.ops-t.since >= uint64(t.opt.Window)
}

// judge compares all settings, and keeps or proposes.
func (t *Tuner) judge(tree Tree, d Decision) Decision {
	best, cost := tree.Best(t.opt.Bounds, d.Mix)
	worthwhile := best != t.current && cost <= d.Before*(1-t.opt.MinGain)
	if worthwhile && t.changed && t.ops-t.lastChange < uint64(t.opt.MinOps) {
		d.To, d.After, d.Verdict = best, cost, TooSoon
		return d // and judged again by the next Step
	}
	t.judged, t.judgedTree, t.ever, t.since = d.Mix, tree, true, 0
	was := t.pending
	switch {
	case !worthwhile && was.Pending():
		t.pending = Decision{}
		d.Verdict = Withdrawn
	case !worthwhile:
		d.Verdict = Keep
	case was.Pending() && cost > tree.Cost(was.To, d.Mix)*(1-t.opt.MinGain):
		// What is proposed already is as good.
		d.To, d.After, d.Verdict = was.To, tree.Cost(was.To, d.Mix), Keep
	default:
		t.serial++
		d.Serial, d.To, d.After, d.Verdict = t.serial, best, cost, Change
		t.pending = d
	}
	return d
}

// Pending returns the change that waits to be made.
func (t *Tuner) Pending() (Decision, bool) { return t.pending, t.pending.Pending() }

// Done reports that a change was made, or, with an error, that it could not be:
// then it is proposed again after MinOps operations at the earliest. A
// decision that is no longer pending, made nevertheless, is what the index has
// now. Other decisions are ignored.
func (t *Tuner) Done(d Decision, err error) {
	if !d.Pending() {
		return
	}
	if err == nil {
		t.current = d.To
	} else {
		t.ever = false // so that what failed is judged again
	}
	if t.pending.Serial == d.Serial {
		t.pending = Decision{}
	}
	t.lastChange, t.changed, t.since = t.ops, true, 0
}

// Verdict is the outcome of a Step.
type Verdict uint8

// The verdicts.
const (
	Filling   Verdict = iota // the window is not full yet
	Steady                   // the work has not changed
	Unsettled                // it is changing
	Keep                     // it has changed, and no other setting is worth a change
	TooSoon                  // one is, but the last change was too short a time ago
	Withdrawn                // the pending change is no longer worth while
	Change                   // To is worth a change
)

// String names the verdict as logs and metrics do.
func (v Verdict) String() string {
	names := [...]string{"filling", "steady", "unsettled", "keep", "too soon", "withdrawn", "change"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// MarshalText writes the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Decision is the outcome of a Step with its reasons. Its fields are what logs
// and metrics show.
type Decision struct {
	Serial  uint64  `json:"serial,omitempty"` // of a Change, from 1
	Verdict Verdict `json:"verdict"`
	Ops     uint64  `json:"ops"` // operations seen so far
	From    Setting `json:"from"`
	To      Setting `json:"to"` // what would be best, or From
	Mix     Mix     `json:"mix"`
	Shift   float64 `json:"shift"` // since the last judgement; 1 before the first
	Entries int64   `json:"entries"`
	Before  float64 `json:"before"` // predicted pages for each operation under From
	After   float64 `json:"after"`  // and under To
}

// Pending reports whether d proposes a change. Tuner.Pending reports whether it is
// still wanted.
func (d Decision) Pending() bool { return d.Verdict == Change }

// Gain is the predicted saving, as a part of the cost.
func (d Decision) Gain() float64 {
	if d.Before <= 0 || math.IsInf(d.Before, 0) {
		return 0
	}
	return 1 - d.After/d.Before
}

// String is a line for the log.
func (d Decision) String() string {
	return fmt.Sprintf("%v: %v to %v, %.3f to %.3f pages an operation (%.0f %% less); put %.1f %%, hit %.1f %%, range %.1f %%, miss %.1f %%, shift %.2f, %d entries, %d operations",
		d.Verdict, d.From, d.To, d.Before, d.After, 100*d.Gain(), 100*d.Mix.Put, 100*d.Mix.Hit, 100*d.Mix.Range, 100*d.Mix.Miss, d.Shift, d.Entries, d.Ops)
}
