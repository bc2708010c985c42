package simulate

import (
	"cmp"
	"slices"
	"time"

	"cascadekv/cascade/policy"
)

// Result is what was found. Ratios are of all references; lists are by capacity, in the
// order of Capacities. The fields "capacities" and "policies" are kept stable for other tools.
type Result struct {
	Trace             string  `json:"trace,omitempty"` // for the caller to fill in
	Requests          int     `json:"requests"`
	Blocks            int64   `json:"blocks"`        // references
	UniqueBlocks      int     `json:"unique_blocks"` // distinct blocks
	UnlimitedHitRatio float64 `json:"unlimited_hit_ratio"`

	Capacities     []float64            `json:"capacities"`      // as shares of the distinct blocks
	CapacityBlocks []int                `json:"capacity_blocks"` // in blocks
	Policies       map[string][]float64 `json:"policies"`        // hit ratio of blocks
	Order          []string             `json:"policy_order"`    // LRU first, MIN last

	AgainstLRU map[string]Comparison `json:"against_lru"`
	TTFT       *TTFT                 `json:"ttft,omitempty"`

	Seconds float64 `json:"seconds"` // of wall time, in all

	// ReferencesPerSecond is how many one second of processor time simulates of a policy,
	// over all capacities.
	ReferencesPerSecond map[string]float64 `json:"references_per_second"`
}

// Comparison is a policy beside LRU.
type Comparison struct {
	HitsOverLRU float64 `json:"hits_over_lru"` // mean over the capacities

	// GapClosed is the sum of hits above LRU's over that of MIN: the share of
	// what there is to win. 0 where MIN gains nothing.
	GapClosed float64 `json:"gap_closed"`

	// CacheForLRUHits is how much cache the policy needs for LRU's hits at each
	// capacity, as a multiple of that capacity: interpolated between the capacities, no cache
	// without hits, and one that has room for all. 0 where LRU has none, which the mean leaves out.
	CacheForLRUHits     []float64 `json:"cache_for_lru_hits"`
	MeanCacheForLRUHits float64   `json:"mean_cache_for_lru_hits"`
}

// TTFT has modelled times to first token.
type TTFT struct {
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
	LoadBytesPerSecond     float64 `json:"load_bytes_per_second"`
	LoadLatencySeconds     float64 `json:"load_latency_seconds"`
	BytesPerToken          float64 `json:"bytes_per_token"`
	Engines                int     `json:"engines"` // 0: no request waits for another

	Policies   map[string][]Quantiles `json:"policies"`
	P90OverLRU map[string][]float64   `json:"p90_over_lru"` // below 1 is better
}

func (g *grid) result() Result {
	r := Result{
		Requests: g.s.requests, Blocks: g.s.references, UniqueBlocks: g.s.unique,
		UnlimitedHitRatio: float64(g.s.unlimited) / float64(g.s.references),
		Capacities:        g.o.Capacities,
		Policies:          map[string][]float64{}, Order: g.o.Policies,
		AgainstLRU: map[string]Comparison{}, ReferencesPerSecond: map[string]float64{},
	}
	used := map[string]time.Duration{}
	if m := g.o.TTFT; m != nil {
		r.TTFT = &TTFT{m.PrefillTokensPerSecond, m.Loads[0].BytesPerSecond, m.Loads[0].Latency.Seconds(), m.BytesPerToken, m.Engines,
			map[string][]Quantiles{}, map[string][]float64{}}
	}
	for i, c := range g.cells {
		if i < len(r.Capacities) {
			r.CapacityBlocks = append(r.CapacityBlocks, c.capacity)
		}
		r.Policies[c.policy] = append(r.Policies[c.policy], float64(c.hits)/float64(g.s.references))
		used[c.policy] += c.used
		if c.ttft != nil {
			r.TTFT.Policies[c.policy] = append(r.TTFT.Policies[c.policy], *c.ttft)
			lru := g.cells[i%len(r.Capacities)] // LRU's are the first
			r.TTFT.P90OverLRU[c.policy] = append(r.TTFT.P90OverLRU[c.policy], c.ttft.P90/lru.ttft.P90)
		}
	}
	for name, t := range used {
		r.ReferencesPerSecond[name] = float64(g.s.references) * float64(len(r.Capacities)) / max(t.Seconds(), 1e-9)
		r.AgainstLRU[name] = r.compare(r.Policies[name])
	}
	return r
}

func (r *Result) compare(hits []float64) Comparison {
	var c Comparison
	lru, most := r.Policies[policy.LRU], r.Policies[Min]
	curve := r.curve(hits)
	var gain, gap, ratios, shares, compared float64
	for i, h := range hits {
		gain += h - lru[i]
		gap += most[i] - lru[i]
		share := 0.0
		if lru[i] > 0 {
			share = curve.capacityFor(lru[i]) / r.Capacities[i]
			shares += share
			ratios += h / lru[i]
			compared++
		}
		c.CacheForLRUHits = append(c.CacheForLRUHits, share)
	}
	if gap > 0 {
		c.GapClosed = gain / gap
	}
	if compared > 0 {
		c.HitsOverLRU, c.MeanCacheForLRUHits = ratios/compared, shares/compared
	}
	return c
}

// curve is hits over capacity, by capacity.
type curve []point

type point struct{ capacity, hits float64 }

// curve adds to the hits what is known without a simulation: no cache hits nothing, and one
// with room for all blocks what an unlimited one does.
func (r *Result) curve(hits []float64) curve {
	c := curve{{0, 0}}
	for i, h := range hits {
		c = append(c, point{r.Capacities[i], h})
	}
	if slices.Max(r.Capacities) < 1 {
		c = append(c, point{1, r.UnlimitedHitRatio})
	}
	slices.SortStableFunc(c, func(a, b point) int { return cmp.Compare(a.capacity, b.capacity) })
	return c
}

// capacityFor is the least capacity with so many hits, the largest one if none has.
func (c curve) capacityFor(hits float64) float64 {
	for i, p := range c[1:] {
		if before := c[i]; p.hits >= hits && p.hits > before.hits {
			return before.capacity + (p.capacity-before.capacity)*max(0, hits-before.hits)/(p.hits-before.hits)
		}
	}
	return c[len(c)-1].capacity
}
