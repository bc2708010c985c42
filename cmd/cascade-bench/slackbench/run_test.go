package slackbench

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/slack"
)

// TestRestore has the bars that a restore in slack has to keep, over hit rates as in Tutti
// Fig. 13: a bubble of 5 % of compute until reads are the longer part, estimates that are off by 5 %
// under noise, no loss against transfers that are mixed, and a crossover behind
// those of the others.
func TestRestore(t *testing.T) {
	o := DefaultOptions()
	o.Seed = 7
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	bound := 0
	for _, r := range res.Rows {
		if r.IOBound {
			bound++
		}
		if !r.IOBound && r.Slack.Share > 0.05 {
			t.Errorf("hit rate %v: a bubble of %v of compute", r.Hit, r.Slack.Share)
		}
		if r.Prefix > 0 && r.Slack.Bubble > r.Sync.Bubble/2 && !r.IOBound {
			t.Errorf("hit rate %v: bubbles of %v and %v ms with all reads in front", r.Hit, r.Slack.Bubble, r.Sync.Bubble)
		}
		if r.Slack.Unsaved > 0 {
			t.Errorf("hit rate %v: %v of the writes are left after decoding", r.Hit, r.Slack.Unsaved)
		}
		if r.Slack.Decode > 1.01 {
			t.Errorf("hit rate %v: writes slow decoding down by %v", r.Hit, r.Slack.Decode)
		}
	}
	if bound < 2 || bound > len(res.Rows)/2 {
		t.Errorf("%d of %d rows are bound by I/O", bound, len(res.Rows))
	}
	if res.TTFTRatio < 1 || res.IORatio < 1 {
		t.Errorf("against mixed transfers: %v of the time to the first token, %v of the throughput", res.TTFTRatio, res.IORatio)
	}
	if c := res.Crossover; c.Slack <= c.Sync || c.Slack <= c.Mixed || c.Slack <= res.IOBound || c.Slack == 1 {
		t.Errorf("crossovers %+v, bound by I/O from %v", c, res.IOBound)
	}
	if res.EstimateError > 0.05 || res.EstimateError < 0.005 {
		t.Errorf("estimates are off by %v, with noise of %v", res.EstimateError, o.Noise)
	}
	if s := res.Stats; s.Window.Count == 0 || s.Read.Count == 0 || s.Write.Count == 0 || s.RequiredReads == s.Reads {
		t.Errorf("%+v", s)
	}
}

// TestNoiseIsSeen: the reported error is that of the estimates, not of the
// simulation.
func TestNoiseIsSeen(t *testing.T) {
	o := DefaultOptions()
	o.Noise, o.Hits = 0.2, []float64{.5, .9}
	res, err := Run(context.Background(), o)
	if err != nil || res.EstimateError < 0.1 {
		t.Errorf("%v: %v with noise of 20 %%", err, res)
	}
}

// TestMixingCosts: without the loss that the disks have, mixed transfers keep up where
// compute hides them.
func TestMixingCosts(t *testing.T) {
	o := DefaultOptions()
	o.Hits, o.Noise = []float64{.92}, 0
	lossy, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Model.MixedLoss = 0
	free, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if lossy.TTFTRatio < 1.2 || free.TTFTRatio > 1.15 || free.TTFTRatio < 1 {
		t.Errorf("mixed over slack: %v, without loss %v", lossy.TTFTRatio, free.TTFTRatio)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no prompt":   func(o *Options) { o.Prompt = 0 },
		"no requests": func(o *Options) { o.Requests = 0 },
		"no rates":    func(o *Options) { o.Hits = nil },
		"rate of 1":   func(o *Options) { o.Hits = []float64{1} },
		"no number":   func(o *Options) { o.Hits = []float64{math.NaN()} },
		"noise":       func(o *Options) { o.Noise = 2 },
		"no compute":  func(o *Options) { o.Model.Flops = 0 },
		"all is lost": func(o *Options) { o.Model.MixedLoss = 1 },
	} {
		o := DefaultOptions()
		change(&o)
		if _, err := Run(context.Background(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, DefaultOptions()); err == nil {
		t.Error("the context has ended")
	}
}

// TestMachine: launches of one kind follow each other; those of two share the
// disks at a loss, unless fenced; what takes more SMs than are free slows
// compute.
func TestMachine(t *testing.T) {
	m := Llama8B()
	m.LaunchTime, m.MixedLoss = 0, 0.6
	m.ReadRate = float64(m.iocbBytes()) // an IOCB a second
	m.WriteRate = m.ReadRate
	launch := func(k slack.Kind, n int, fence bool) slack.Launch {
		return slack.Launch{Kind: k, IOCBs: n, SMs: 2, Fence: fence}
	}
	for name, c := range map[string]struct {
		launches []slack.Launch
		work     float64
		free     int
		want     float64 // until compute is done and all reads have ended
	}{
		"compute alone":      {nil, 3, 12, 3},
		"hidden":             {[]slack.Launch{launch(slack.Read, 2, false)}, 3, 12, 3},
		"longer than it":     {[]slack.Launch{launch(slack.Read, 5, false)}, 3, 12, 5},
		"in a row":           {[]slack.Launch{launch(slack.Read, 2, false), launch(slack.Read, 3, false)}, 0, 12, 5},
		"fenced":             {[]slack.Launch{launch(slack.Write, 2, false), launch(slack.Read, 3, true)}, 0, 12, 5},
		"mixed":              {[]slack.Launch{launch(slack.Write, 1, false), launch(slack.Read, 1, false)}, 0, 12, 5},
		"mixed for a while":  {[]slack.Launch{launch(slack.Write, 1, false), launch(slack.Read, 3, false)}, 0, 12, 7},
		"one SM too many":    {[]slack.Launch{launch(slack.Read, 4, false)}, 1, 1, 4},
		"SMs that are taken": {[]slack.Launch{{Kind: slack.Read, IOCBs: 100, SMs: 66}}, 1, 0, 100},
	} {
		x := &machine{m: &m, rnd: rand.New(rand.NewPCG(1, 1))}
		x.start(c.launches)
		reads := 0
		for _, l := range c.launches {
			if l.Kind == slack.Read {
				reads += l.IOCBs
			}
		}
		x.run(c.work, c.free, reads)
		if math.Abs(x.now-c.want) > 1e-6 {
			t.Errorf("%s: %v seconds, want %v", name, x.now, c.want)
		}
	}
	x := &machine{m: &m, rnd: rand.New(rand.NewPCG(1, 1))}
	x.start([]slack.Launch{{Kind: slack.Read, IOCBs: 100, SMs: 66}})
	if x.run(1, 0, 0); math.Abs(x.now-2) > 1e-6 {
		t.Errorf("half the SMs: %v seconds for one of compute", x.now)
	}
}

// TestReport shows each order, and the place from which reads are too slow.
func TestReport(t *testing.T) {
	o := DefaultOptions()
	o.Hits, o.Requests = []float64{0, .5, .9, .98}, 1
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Report(&out, res, [][]string{{"HIT RATE"}, {"<50 %>"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sync\n0 %: ", "mixed\n0 %: ", "slack\n0 %: ", "bound by I/O from 9", "&lt;50 %&gt;", ">0.01 %<", " ms<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
		t.Errorf("no number in\n%s", out.String())
	}
}

// TestRing: what IOCBs occupy follows from the GPU, and an IOCB has no more transfers than those SMs have threads for.
func TestRing(t *testing.T) {
	m := Llama8B()
	m.Transfers = 1024
	for want, f := range map[int]gio.Facts{4: {}, 8: {UnitSMs: 2, WarpsPerSM: 48, ThreadsPerWarp: 32}, 32: {UnitSMs: 8, WarpsPerSM: 8, ThreadsPerWarp: 32}} {
		m.Ring = f
		if got := m.launchSMs(4); got != want || m.Check() != nil {
			t.Errorf("4 IOCBs on %+v: %d SMs, want %d, %v", f, got, want, m.Check())
		}
	}
	m.Ring = gio.Facts{UnitSMs: 1, WarpsPerSM: 32, ThreadsPerWarp: 32}
	if err := m.Check(); err == nil {
		t.Error("1,024 transfers of an IOCB on a GPU with threads for 512")
	}
}
