package slackbench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"cascadekv/gpu/slack"
)

// Options configure Run.
type Options struct {
	Model    Model
	Prompt   int       // tokens
	Hits     []float64 // shares of the prompt that are restored
	Requests int       // of each hit rate and order, one after the other
	Output   int       // tokens that are decoded for each
	Noise    float64   // standard deviation of a time, as a share of it
	Seed     uint64
	Progress func(done, total int)
}

// DefaultOptions are those of Tutti Fig. 13: a prompt of 32 Ki tokens.
func DefaultOptions() Options {
	return Options{
		Model: Llama8B(), Prompt: 32 << 10, Requests: 8, Output: 64, Noise: 0.03, Seed: 1,
		Hits: []float64{0, .125, .25, .375, .5, .625, .75, .8125, .875, .9, .92, .9375, .953, .969, .983, .99},
	}
}

// Figures are means over the requests of one hit rate in one order.
type Figures struct {
	TTFT     float64 `json:"ttft_ms"`
	Bubble   float64 `json:"bubble_ms"`
	Share    float64 `json:"bubble_share"`    // of compute
	GBPerSec float64 `json:"io_gbps"`         // bytes moved over the time with transfers in flight, decoding included
	Unsaved  float64 `json:"unsaved"`         // share of a request's writes still queued at the end of its decoding
	Decode   float64 `json:"decode_slowdown"` // time of decoding over that without transfers
}

// Row is one hit rate.
type Row struct {
	Hit       float64 `json:"hit"`
	Input     int     `json:"input_tokens"`
	Prefix    int     `json:"prefix_tokens"`
	Compute   float64 `json:"compute_ms"`
	LayerRead float64 `json:"layer_read_ms"`
	IOBound   bool    `json:"io_bound"` // reading a layer takes longer than computing one
	Sync      Figures `json:"sync"`
	Mixed     Figures `json:"mixed"`
	Slack     Figures `json:"slack"`
}

// Crossover has the hit rate from which on the bubble is longer than compute, 1 for
// none.
type Crossover struct {
	Sync  float64 `json:"sync"`
	Mixed float64 `json:"mixed"`
	Slack float64 `json:"slack"`
}

// Result is what Run found.
type Result struct {
	Profile  slack.Key `json:"profile"`
	Prompt   int       `json:"prompt_tokens"`
	Layers   int       `json:"layers"`
	Noise    float64   `json:"noise"`
	Requests int       `json:"requests"`
	Rows     []Row     `json:"rows"`

	Crossover     Crossover   `json:"crossover"`
	IOBound       float64     `json:"io_bound_from"`     // hit rate from which on reading a layer takes longer than computing it
	BubbleShare   float64     `json:"bubble_share_max"`  // of slack, over rows that are not bound by I/O
	TTFTRatio     float64     `json:"ttft_ratio_min"`    // mixed over slack, the least of all rows with reads
	IORatio       float64     `json:"io_gbps_ratio_min"` // slack over mixed, likewise
	EstimateError float64     `json:"estimate_error"`    // the largest of the three means
	Stats         slack.Stats `json:"stats"`
	CPUPerLayer   float64     `json:"cpu_us_per_layer"`
}

// Run simulates each hit rate in each order. Errors: of the options, and the
// context's.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Prompt < 1 || o.Requests < 1 || o.Output < 0 || len(o.Hits) == 0 || !(o.Noise >= 0 && o.Noise <= 0.5) {
		return nil, fmt.Errorf("a prompt of %d tokens, %d requests of %d tokens, %d hit rates, noise %v: the first two and the fourth must be above 0, noise at most 0.5",
			o.Prompt, o.Requests, o.Output, len(o.Hits), o.Noise)
	}
	if err := o.Model.Check(); err != nil {
		return nil, err
	}
	p := o.Model.Profile()
	s, err := slack.New(p)
	if err != nil {
		return nil, err
	}
	res := &Result{Profile: p.Key, Prompt: o.Prompt, Layers: o.Model.Layers, Noise: o.Noise, Requests: o.Requests, TTFTRatio: math.MaxFloat64, IORatio: math.MaxFloat64}
	for i, hit := range o.Hits {
		if !(hit >= 0 && hit < 1) {
			return nil, fmt.Errorf("a hit rate of %v, it must be at least 0 and less than 1", hit)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		row, err := o.row(hit, s)
		if err != nil {
			return nil, err
		}
		res.Rows = append(res.Rows, row)
		if !row.IOBound {
			res.BubbleShare = max(res.BubbleShare, row.Slack.Share)
		}
		if row.Prefix > 0 {
			res.TTFTRatio = min(res.TTFTRatio, ratio(row.Mixed.TTFT, row.Slack.TTFT))
			res.IORatio = min(res.IORatio, ratio(row.Slack.GBPerSec, row.Mixed.GBPerSec))
		}
		if o.Progress != nil {
			o.Progress(i+1, len(o.Hits))
		}
	}
	if res.Crossover, res.IOBound, err = o.crossover(); err != nil {
		return nil, err
	}
	res.Stats = s.Stats()
	for _, e := range []slack.Estimates{res.Stats.Window, res.Stats.Read, res.Stats.Write} {
		res.EstimateError = max(res.EstimateError, e.Error)
	}
	res.CPUPerLayer, err = o.cost(p)
	return res, err
}

// ratio is a/b without what sums of many terms are off by.
func ratio(a, b float64) float64 { return math.Round(a/b*1e9) / 1e9 }

// request is the prompt at a hit rate: whole blocks are restored, at least one token
// is computed.
func (o *Options) request(hit float64) slack.Request {
	m := &o.Model
	prefix := min(int(hit*float64(o.Prompt)), o.Prompt-1) / m.BlockTokens * m.BlockTokens
	r := slack.Request{Input: o.Prompt - prefix, Prefix: prefix, Reads: make([]int, m.Layers)}
	for l := range r.Reads {
		r.Reads[l] = m.iocbs(prefix)
	}
	return r
}

// iocbs is how many a layer's keys and values of so many tokens take.
func (m *Model) iocbs(tokens int) int {
	transfers := 2 * ((tokens + m.BlockTokens - 1) / m.BlockTokens)
	return (transfers + m.Transfers - 1) / m.Transfers
}

func (o *Options) row(hit float64, s *slack.Scheduler) (Row, error) {
	r := o.request(hit)
	row := Row{Hit: hit, Input: r.Input, Prefix: r.Prefix, Compute: 1e3 * float64(o.Model.Layers) * o.Model.layer(r.Input, r.Prefix)}
	if n := r.Reads[0]; n > 0 {
		row.LayerRead = 1e3 * o.Model.launch(slack.Read, n)
	}
	row.IOBound = row.LayerRead > row.Compute/float64(o.Model.Layers)
	s.Forget(s.Writes()) // of the row before
	for _, c := range []struct {
		by  order
		out *Figures
	}{{&simple{m: &o.Model, sync: true}, &row.Sync}, {&simple{m: &o.Model}, &row.Mixed}, {planned{s}, &row.Slack}} {
		var err error
		if *c.out, err = o.simulate(r, c.by); err != nil {
			return row, err
		}
	}
	return row, nil
}

// simulate serves the request again and again, in one order. All orders meet the
// same noise of compute, and of the first read of each request.
func (o *Options) simulate(r slack.Request, by order) (f Figures, err error) {
	m := &o.Model
	c := &machine{m: m, noise: o.Noise}
	compute := rand.New(rand.NewPCG(o.Seed+1, uint64(r.Prefix)))
	drawn := func(t float64) float64 { return t * max(0.5, 1+o.Noise*compute.NormFloat64()) }
	p, plans := by.(planned)
	if plans {
		c.observe = func(q slack.Quantity, l slack.Launch, actual float64) { p.s.Observe(q, l.Estimate, seconds(actual)) }
	}
	made := m.Layers * m.iocbs(r.Input)
	reads := 0
	for i := range o.Requests {
		c.rnd = rand.New(rand.NewPCG(o.Seed+uint64(i)<<32, uint64(r.Prefix)))
		began, alone := c.now, 0.0
		launches, err := by.begin(r)
		if err != nil {
			return f, err
		}
		c.start(launches)
		for l := range m.Layers {
			reads += r.Reads[l]
			due := reads
			if s, ok := by.(*simple); ok && s.sync && l == 0 {
				due += (m.Layers - 1) * r.Reads[0]
			}
			c.run(0, 0, due)
			d, err := by.layer(l)
			if err != nil {
				return f, err
			}
			c.start(d.Launches)
			t := drawn(m.layer(r.Input, r.Prefix))
			alone += t
			c.run(t, m.FreeSMs, 0)
			if plans {
				p.s.Observe(slack.WindowTime, d.Window.Time, seconds(t))
			}
			if err := by.queue(m.iocbs(r.Input)); err != nil {
				return f, err
			}
		}
		bubble := c.now - began - alone
		if bubble < 1e-9 {
			bubble = 0 // what additions left
		}
		f.TTFT += 1e3 * (alone + bubble)
		f.Bubble += 1e3 * bubble
		f.Share += bubble / alone
		c.start(by.prefilled())
		began, alone = c.now, 0
		for i := range o.Output {
			c.start(by.decode(o.Prompt + i))
			t := drawn(m.decode(o.Prompt + i))
			alone += t
			c.run(t, m.DecodeSMs, 0)
		}
		if o.Output > 0 {
			f.Decode += (c.now - began) / alone
		}
		f.Unsaved += min(float64(by.writes())/float64(made), float64(o.Requests))
	}
	n := float64(o.Requests)
	f.TTFT, f.Bubble, f.Share, f.Decode, f.Unsaved = f.TTFT/n, f.Bubble/n, f.Share/n, f.Decode/n, f.Unsaved/n
	if c.busy > 0 {
		f.GBPerSec = float64(int64(c.moved)*m.iocbBytes()) / c.busy / 1e9
	}
	return f, nil
}

// crossover goes through hit rates in steps of a thousandth, without noise, and
// returns the lowest ones at which bubbles, and reads, are the longer part.
func (o *Options) crossover() (c Crossover, ioBound float64, err error) {
	quiet := *o
	quiet.Noise, quiet.Requests, quiet.Output = 0, 1, 0
	s, err := slack.New(o.Model.Profile())
	if err != nil {
		return c, 0, err
	}
	c, ioBound = Crossover{1, 1, 1}, 1
	for i := range 1000 {
		hit := float64(i) / 1000
		row, err := quiet.row(hit, s)
		if err != nil {
			return c, 0, err
		}
		for _, x := range []struct {
			longer bool
			at     *float64
		}{{row.Sync.Share > 1, &c.Sync}, {row.Mixed.Share > 1, &c.Mixed}, {row.Slack.Share > 1, &c.Slack}, {row.IOBound, &ioBound}} {
			if x.longer {
				*x.at = min(*x.at, hit)
			}
		}
	}
	return c, ioBound, nil
}

// cost is the processor time of planning a layer, in microseconds: the median of
// rounds of whole requests, what is done once for each of them included.
func (o *Options) cost(p *slack.Profile) (float64, error) {
	s, err := slack.New(p)
	if err != nil {
		return 0, err
	}
	by := planned{s}
	rounds := make([]float64, 9)
	for i := range rounds {
		layers := 0
		began := time.Now()
		for layers < 20_000 {
			r := o.request(o.Hits[layers%len(o.Hits)])
			if _, err := by.begin(r); err != nil {
				return 0, err
			}
			for l := range p.Layers {
				if _, err := by.layer(l); err != nil {
					return 0, err
				}
				if err := by.queue(1); err != nil {
					return 0, err
				}
			}
			by.decode(o.Prompt)
			layers += p.Layers
		}
		rounds[i] = float64(time.Since(began).Nanoseconds()) / 1e3 / float64(layers)
	}
	slices.SortFunc(rounds, cmp.Compare)
	return rounds[len(rounds)/2], nil
}
