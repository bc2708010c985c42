package cascade

import (
	"context"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/residency"
)

// Advice is what a client gains from a chain: a prefix that is loaded while the rest is computed.
type Advice struct {
	ProbeResult
	Blocks int           // leading keys to load; fewer than Hits where computing the rest is faster
	Load   time.Duration // estimate of how long these take

	// PerBlock is how long computing a block was taken to be; 0 if nothing was Learned.
	PerBlock time.Duration
}

// Learned stands for what is learned of how long a namespace's blocks take to compute. Where nothing is,
// all is worth loading.
const Learned time.Duration = -1

// Advise is Probe for a client that computes a block in perBlock, or in what is Learned, and loads no
// more than is advised: that much is brought here.
func Advise(ctx context.Context, s *Store, ns string, keys []string, perBlock time.Duration) Advice {
	c := s.probe(ctx, ns, keys)
	a := Advice{ProbeResult: c.res, PerBlock: perBlock}
	if perBlock == Learned {
		a.PerBlock = s.state.Requests.Prefills.PerBlock(ns)
	}
	if perBlock == Learned && a.PerBlock == 0 {
		a.Blocks, a.Load = c.res.Hits, time.Duration(c.res.LoadUS())*time.Microsecond
	} else {
		a.Blocks, a.Load = estimate.Best(c.runs, c.lines, a.PerBlock)
	}
	c.prefetch(s, a.Blocks)
	prefetchOwn(s, ns, keys[:a.Blocks])
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
	c.runs, c.lines = forEstimate(s, c.res.Runs), linesOf(s)
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
		}
		runs[i] = estimate.Run{Level: level, Blocks: r.Hits, Bytes: r.Bytes}
	}
	return runs
}

// linesOf is how long loads from each level take by now.
func linesOf(s *Store) []estimate.Line {
	lines := []estimate.Line{fromMemory: s.state.Last().Line(), fromRemote: s.state.Remote.Line()}
	if s.state.Cold != nil {
		lines = append(lines, s.state.Cold.Line())
	}
	return lines
}
