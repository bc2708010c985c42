package replay

import (
	"maps"
	"sync"
	"time"
)

// maxPoints bounds a series; on reaching it, neighbours are merged.
const maxPoints = 120

// outcome is what happened to one request.
type outcome struct {
	blocks, tokens       int64
	hits, hitTokens      int64
	reachable            int64
	hitBytes, wrong      int64
	put, rejected        int64
	probed, got, putting time.Duration
	tiers                []tierHits // reused between requests
}

type tierHits struct {
	name  string
	hits  int64
	bytes int64
}

func (o *outcome) reset() { *o = outcome{tiers: o.tiers[:0]} }

// hit notes one block that a tier served.
func (o *outcome) hit(tier string, bytes int) {
	o.hits++
	o.hitBytes += int64(bytes)
	for i := range o.tiers {
		if t := &o.tiers[i]; t.name == tier {
			t.hits++
			t.bytes += int64(bytes)
			return
		}
	}
	o.tiers = append(o.tiers, tierHits{tier, 1, int64(bytes)})
}

// totals adds up the outcomes of all workers.
type totals struct {
	mu           sync.Mutex
	requests     int
	sum          outcome
	tiers        map[string]TierResult
	probes, gets histogram
	puts         histogram
	series       []Point
	stretch      int // requests of a whole point
	open         Point
	progress     func(Progress)
	policy       string
}

func newTotals(policy string, progress func(Progress)) *totals {
	return &totals{policy: policy, progress: progress, stretch: 1, tiers: map[string]TierResult{}, open: Point{Hits: map[string]int64{}}}
}

// add counts one request and reports the progress to the caller.
func (t *totals) add(o *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	t.sum.blocks += o.blocks
	t.sum.tokens += o.tokens
	t.sum.hits += o.hits
	t.sum.reachable += o.reachable
	t.sum.hitTokens += o.hitTokens
	t.sum.hitBytes += o.hitBytes
	t.sum.wrong += o.wrong
	t.sum.put += o.put
	t.sum.rejected += o.rejected
	if o.probed > 0 {
		t.probes.add(o.probed)
	}
	if o.got > 0 {
		t.gets.add(o.got)
	}
	if o.putting > 0 {
		t.puts.add(o.putting)
	}
	for _, h := range o.tiers {
		r := t.tiers[h.name]
		r.Hits += h.hits
		r.Bytes += h.bytes
		t.tiers[h.name] = r
		t.open.Hits[h.name] += h.hits
	}
	t.open.Blocks += o.blocks
	if t.requests%t.stretch == 0 {
		t.endPoint()
	}
	if t.progress != nil {
		t.progress(Progress{
			Policy: t.policy, Requests: t.requests, Blocks: t.sum.blocks, HitBlocks: t.sum.hits,
			ReachableBlocks: t.sum.reachable, WrongBytes: t.sum.wrong,
		})
	}
}

// endPoint ends the stretch that is open. A full series is halved, so that its
// length is bounded however long the trace is.
func (t *totals) endPoint() {
	t.open.Requests = t.requests
	t.series = append(t.series, t.open)
	t.open = Point{Hits: map[string]int64{}}
	if len(t.series) < maxPoints {
		return
	}
	for i := range len(t.series) / 2 {
		a, b := t.series[2*i], t.series[2*i+1]
		b.Blocks += a.Blocks
		b.Hits = maps.Clone(b.Hits)
		for tier, n := range a.Hits {
			b.Hits[tier] += n
		}
		t.series[i] = b
	}
	t.series = t.series[:len(t.series)/2]
	t.stretch *= 2
}

// result returns what was measured; workers shared the time of the histograms.
func (t *totals) result(workers, blockBytes int) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open.Blocks > 0 {
		t.endPoint()
	}
	r := Result{
		Policy: t.policy, Requests: t.requests, Blocks: t.sum.blocks, Tokens: t.sum.tokens,
		HitBlocks: t.sum.hits, HitTokens: t.sum.hitTokens,
		HitRatioBlocks: ratio(t.sum.hits, t.sum.blocks), HitRatioTokens: ratio(t.sum.hitTokens, t.sum.tokens),
		WrongBytes: t.sum.wrong, PutBlocks: t.sum.put, RejectedBlocks: t.sum.rejected,
		Tiers: t.tiers, BlockBytes: blockBytes, Workers: workers,
		ProbeUS: t.probes.latency(), GetUS: t.gets.latency(), PutUS: t.puts.latency(), Series: t.series,
	}
	for name, tier := range r.Tiers {
		tier.HitRatio = ratio(tier.Hits, r.Blocks)
		r.Tiers[name] = tier
	}
	// Bytes per nanosecond are 10⁹ bytes per second.
	r.GBps.Get = float64(workers) * ratio(t.sum.hitBytes, int64(t.gets.sum))
	r.GBps.Put = float64(workers) * ratio(t.sum.put*int64(blockBytes), int64(t.puts.sum))
	return r
}
