package slackbench

import (
	"math/rand/v2"

	"cascadekv/gpu/slack"
)

// flight is one launch on its way.
type flight struct {
	slack.Launch
	left    float64 // seconds of work, with nothing else in flight
	alone   float64 // left when it was launched
	blocked int     // launches of the other kind that it waits for
}

// machine is a GPU and its disks at one moment. Launches of a kind go one after
// the other; those of different kinds go at once where no fence keeps them apart.
type machine struct {
	m     *Model
	noise float64
	rnd   *rand.Rand
	now   float64

	queues [2][]*flight // by kind
	ended  [2]int       // IOCBs, by kind
	busy   float64      // seconds with a transfer in flight
	moved  int          // IOCBs of both kinds that ended

	observe func(q slack.Quantity, l slack.Launch, actual float64)
}

// drawn is a time with noise.
func (c *machine) drawn(t float64) float64 {
	return t * max(0.5, 1+c.noise*c.rnd.NormFloat64())
}

// start enqueues launches.
func (c *machine) start(all []slack.Launch) {
	for _, l := range all {
		t := c.drawn(c.m.launch(l.Kind, l.IOCBs))
		f := &flight{Launch: l, left: t, alone: t}
		if l.Fence {
			f.blocked = len(c.queues[1-l.Kind])
		}
		c.queues[l.Kind] = append(c.queues[l.Kind], f)
	}
}

// active is the launch of a kind that runs, nil for none.
func (c *machine) active(k slack.Kind) *flight {
	if q := c.queues[k]; len(q) > 0 && q[0].blocked == 0 {
		return q[0]
	}
	return nil
}

// run goes on until work seconds of compute are done, at the pace that a GPU that
// leaves free SMs has beside the transfers, and until reads have ended; with work
// below 0 there is no compute. It returns when both have happened.
func (c *machine) run(work float64, free int, reads int) {
	for work > 0 || c.ended[slack.Read] < reads {
		r, w := c.active(slack.Read), c.active(slack.Write)
		if work <= 0 && r == nil && w == nil {
			return // nobody launched what is waited for: the caller counts reads
		}
		pace, sms := 1.0, 0
		if r != nil && w != nil {
			pace = (1 - c.m.MixedLoss) / 2
		}
		step := -1.0
		for _, f := range []*flight{r, w} {
			if f != nil {
				sms += f.SMs
				if t := f.left / pace; step < 0 || t < step {
					step = t
				}
			}
		}
		compute := 1.0
		if sms > free {
			compute = float64(max(c.m.SMs-sms, 1)) / float64(c.m.SMs-free)
		}
		if work > 0 && (step < 0 || work/compute < step) {
			step = work / compute
		}
		c.now += step
		work -= step * compute
		if work < 1e-12 {
			work = 0
		}
		if r != nil || w != nil {
			c.busy += step
		}
		for _, f := range []*flight{r, w} {
			if f != nil {
				f.left -= step * pace
				if f.left < 1e-12 {
					c.end(f)
				}
			}
		}
	}
}

// end takes the first launch of its kind off its queue.
func (c *machine) end(f *flight) {
	c.queues[f.Kind] = c.queues[f.Kind][1:]
	c.ended[f.Kind] += f.IOCBs
	c.moved += f.IOCBs
	for _, other := range c.queues[1-f.Kind] {
		if other.blocked > 0 {
			other.blocked--
		}
	}
	if c.observe != nil {
		q := slack.ReadTime
		if f.Kind == slack.Write {
			q = slack.WriteTime
		}
		c.observe(q, f.Launch, f.alone)
	}
}
