package replay

import "time"

// Result is what one run measured. Times are those of whole requests: one
// probe, one get of all blocks that hit, one put of all that missed, without
// the making and comparing of payloads.
type Result struct {
	Trace        string `json:"trace,omitempty"` // as the caller names it
	Policy       string `json:"policy"`
	Requests     int    `json:"requests"`
	Blocks       int64  `json:"blocks"`
	UniqueBlocks int64  `json:"unique_blocks"` // distinct blocks that requests asked for
	Tokens       int64  `json:"tokens"`        // of all prompts

	HitBlocks      int64   `json:"hit_blocks"`
	HitTokens      int64   `json:"hit_tokens"`
	HitRatioBlocks float64 `json:"hit_ratio_blocks"`
	HitRatioTokens float64 `json:"hit_ratio_tokens"`
	// UnlimitedHitRatio is by blocks, of an empty cache that then keeps all.
	UnlimitedHitRatio float64 `json:"unlimited_hit_ratio"`

	// DedupRatio is Blocks / UniqueBlocks, CASCADE's equation 6: how many
	// copies of each block a cache would keep that keeps one per session.
	DedupRatio float64 `json:"dedup_ratio"`
	// StoreDedupRatio is BytesReferenced / BytesStored: names of the target
	// that share a block, at the end. A replay's blocks have one name each.
	StoreDedupRatio float64 `json:"store_dedup_ratio"`
	BytesReferenced int64   `json:"bytes_referenced"`
	BytesStored     int64   `json:"bytes_stored"`

	WrongBytes     int64 `json:"wrong_bytes"`     // of hits: any but 0 is a bug of the target
	PutBlocks      int64 `json:"put_blocks"`      // stored after a miss
	RejectedBlocks int64 `json:"rejected_blocks"` // not stored for want of room
	LostRequests   int64 `json:"lost_requests"`   // that a rank of several failed in

	Tiers         map[string]TierResult `json:"tiers"`
	TierOrder     []string              `json:"tier_order"`     // fastest first
	CapacityBytes int64                 `json:"capacity_bytes"` // room for blocks in the bounded tiers
	BlockBytes    int                   `json:"block_bytes"`
	Workers       int                   `json:"workers"`
	Seconds       float64               `json:"seconds"` // wall time, payloads included

	GBps    Rates   `json:"gbps"`
	ProbeUS Latency `json:"probe_us"`
	GetUS   Latency `json:"get_us"`
	PutUS   Latency `json:"put_us"`
	Series  []Point `json:"series"`
}

// TierResult is one tier's share of the hits.
type TierResult struct {
	Hits     int64   `json:"hits"`
	HitRatio float64 `json:"hit_ratio"` // of all blocks asked for
	Bytes    int64   `json:"bytes"`     // served
}

// Rates are in 10⁹ bytes per second of time spent in such calls, times the
// number of workers.
type Rates struct {
	Get float64 `json:"get"`
	Put float64 `json:"put"`
}

// Latency summarises times in microseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// Curve holds the quantiles at CurveShares, for plots.
	Curve []float64 `json:"curve"`
}

// CurveShares are the shares at which Latency.Curve samples the distribution.
var CurveShares = [...]float64{0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 1}

// Point is one stretch of the series.
type Point struct {
	Requests int              `json:"requests"` // from the start to the stretch's end
	Blocks   int64            `json:"blocks"`   // asked for in the stretch
	Hits     map[string]int64 `json:"hits"`     // of them, by tier
}

func (h *histogram) latency() Latency {
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	l := Latency{Count: h.n, P50: us(h.quantile(0.5)), P90: us(h.quantile(0.9)), P99: us(h.quantile(0.99)), Max: us(h.most)}
	if h.n == 0 {
		return l
	}
	l.Mean = us(h.sum) / float64(h.n)
	for _, q := range CurveShares {
		l.Curve = append(l.Curve, us(h.quantile(q)))
	}
	return l
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
