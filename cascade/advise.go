package cascade

import (
	"context"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
)

// Advice is what a client gains from a chain: a prefix that is loaded while the rest is computed.
type Advice struct {
	ProbeResult
	Blocks int           // leading keys to load; fewer than Hits where computing the rest is faster
	Tokens int64         // that these have, if whole; -1: the namespace's layout does not say
	Load   time.Duration // estimate of how long they take

	// PerBlock is how long computing a block was taken to be; 0 if that is not known.
	PerBlock time.Duration
}

// Learned stands for what is learned of how long a namespace's blocks take to compute. Where nothing is known,
// all is worth loading.
const Learned time.Duration = -1

// Ask is what a client declares when it asks for advice.
type Ask struct {
	PerBlock time.Duration // how long it takes to compute a block, or Learned
	Rate     float64       // instead: tokens that it computes in a second, of which the namespace's layout says how many a block has
	Hint     Hint          // of the chain, which counts with the request: see Probe
}

// Advise is Probe for a client that can also compute blocks, and loads no more than is advised: that much is brought here.
func Advise(ctx context.Context, s *Store, ns string, keys []string, ask Ask) Advice {
	c := s.probe(ctx, ns, keys, ask.Hint)
	a, known := Advice{ProbeResult: c.res, PerBlock: ask.PerBlock, Tokens: -1}, true
	tokens := float64(s.layouts.Of(ns).Tokens)
	switch {
	case ask.Rate > 0:
		a.PerBlock, known = time.Duration(min(tokens/ask.Rate, time.Hour.Seconds())*1e9), tokens > 0
	case ask.PerBlock == Learned:
		a.PerBlock = s.state.Requests.Prefills.PerBlock(ns)
		known = a.PerBlock > 0
	}
	if known {
		a.Blocks, a.Load = estimate.Best(c.runs, c.lines, a.PerBlock)
	} else {
		a.Blocks, a.Load = c.res.Hits, time.Duration(c.res.LoadUS())*time.Microsecond
	}
	if tokens > 0 {
		a.Tokens = int64(a.Blocks) * int64(tokens)
	}
	c.prefetch(s, a.Blocks)
	load.PrefetchOwn(s.load, ns, keys[:a.Blocks], ask.Hint.Soon)
	return a
}

// CopiesBegin has the store of views, nil among them, learn how long it takes to copy their bytes to a
// client. What it returns is called when they were copied, with whether all of them were.
func CopiesBegin(views []*View) (ended func(all bool)) {
	bytes := int64(0)
	var memory *residency.Level
	for _, v := range views {
		if v != nil {
			bytes, memory = bytes+v.Size(), v.Memory()
		}
	}
	if memory == nil {
		return func(bool) {}
	}
	return memory.BeganLoad(bytes)
}

// estimateLoads sets how long the runs of a chain take to load.
func (c *chain) estimateLoads(s *Store) {
	c.runs = forEstimate(s, c.res.Runs)
	for i, t := range estimate.Times(c.runs, c.lines) {
		c.res.Runs[i].LoadUS = t.Microseconds()
	}
}

// forEstimate puts runs into the words of package estimate. Level 0 is memory, which all is copied from
// in the end.
func forEstimate(s *Store, of []Run) []estimate.Run {
	runs := make([]estimate.Run, len(of))
	for i, r := range of {
		level := fromMemory
		switch r.Tier {
		case residency.RemoteTier:
			level = fromRemote
		case s.state.ColdName():
			level = fromFiles
		case deepName(s):
			level = fromDeep
		}
		runs[i] = estimate.Run{Level: level, Blocks: r.Hits, Bytes: r.Bytes}
	}
	return runs
}

// linesOf is how long loads from each level take by now.
func linesOf(s *Store) []estimate.Line {
	lines := []estimate.Line{fromMemory: s.state.Host().Line(), fromRemote: s.state.Remote.Line(), fromDeep: {}}
	if d := s.state.Deep(); d != nil {
		lines[fromDeep] = d.Line()
	}
	if s.state.Cold != nil {
		lines = append(lines, s.state.Cold.Line())
	}
	return lines
}
