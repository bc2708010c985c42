package slack

import (
	"sort"
	"time"
)

// Window is the slack of one layer, or of one decode step.
type Window struct {
	Time time.Duration
	SMs  int
}

// between is the window at share num/den of the way from a to b. Budgets do not
// change evenly, so the smaller one counts.
func between(a, b Window, num, den int) Window {
	w := Window{a.Time + time.Duration(float64(b.Time-a.Time)*float64(num)/float64(den)), a.SMs}
	if num > 0 {
		w.SMs = min(a.SMs, b.SMs)
	}
	return w
}

// at is the window behind a prefix: between two steps on the line between them,
// behind more than was profiled that of the longest one, which is too short
// rather than too long.
func (r *Row) at(prefix, step int) Window {
	k, last := prefix/step, len(r.Time)-1
	if k >= last {
		return Window{r.Time[last], r.SMs[last]}
	}
	return between(Window{r.Time[k], r.SMs[k]}, Window{r.Time[k+1], r.SMs[k+1]}, prefix%step, step)
}

// DecodeWindow is the slack of a decode step of a sequence of tokens.
func (p *Profile) DecodeWindow(tokens int) Window { return p.Decode.at(max(tokens, 0), p.StepTokens) }

// LayerWindow is the slack of a layer of a prefill that computes input tokens behind
// a prefix. Between two steps it lies on the line between them; before the first step on the
// line from a layer of decoding, which computes one token. Without input
// there is none.
func (p *Profile) LayerWindow(input, prefix int) Window {
	if input < 1 {
		return Window{}
	}
	prefix = max(prefix, 0)
	i, step := input/p.StepTokens, p.StepTokens
	switch {
	case i >= len(p.Prefill):
		return p.Prefill[len(p.Prefill)-1].at(prefix, step)
	case i > 0:
		return between(p.Prefill[i-1].at(prefix, step), p.Prefill[i].at(prefix, step), input%step, step)
	}
	one := p.DecodeWindow(prefix)
	one.Time /= time.Duration(p.Layers)
	if step == 1 {
		return one
	}
	return between(one, p.Prefill[0].at(prefix, step), input-1, step-1)
}

// Kind is the direction of a transfer.
type Kind int

// Read is from NVMe into device memory; Write is from device memory.
const (
	Read Kind = iota
	Write
)

// String returns the kind's name.
func (k Kind) String() string {
	if k == Write {
		return "write"
	}
	return "read"
}

func (p *Profile) kernels(k Kind) []Kernel {
	if k == Write {
		return p.Write
	}
	return p.Read
}

// Launch returns what a launch of n IOCBs takes. Between two counts of the table
// its time is on the line between them and its SMs those of the larger one;
// above the largest it is several launches, one after the other.
func (p *Profile) Launch(k Kind, n int) Kernel {
	all := p.kernels(k)
	largest := all[len(all)-1]
	out := Kernel{IOCBs: max(n, 0)}
	if n > largest.IOCBs {
		out.Time, out.SMs = time.Duration(n/largest.IOCBs)*largest.Time, largest.SMs
		n %= largest.IOCBs
	}
	if n < 1 {
		return out
	}
	i := sort.Search(len(all), func(i int) bool { return all[i].IOCBs >= n })
	above := all[i]
	out.SMs = max(out.SMs, above.SMs)
	if above.IOCBs == n {
		out.Time += above.Time
		return out
	}
	below := all[i-1]
	share := float64(n-below.IOCBs) / float64(above.IOCBs-below.IOCBs)
	out.Time += below.Time + time.Duration(share*float64(above.Time-below.Time))
	return out
}

// Fit returns the largest count, at most most and at most that of the largest
// launch, that ends within w and on its SMs; 0 for none.
func (p *Profile) Fit(k Kind, w Window, most int) int {
	all := p.kernels(k)
	most = min(most, all[len(all)-1].IOCBs)
	return sort.Search(max(most, 0), func(i int) bool {
		l := p.Launch(k, i+1)
		return l.Time > w.Time || l.SMs > w.SMs
	})
}
