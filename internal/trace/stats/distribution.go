package stats

import "math/bits"

// subBuckets divide each power of two, so a percentile is at most 0.8 % off,
// and below subBuckets exact.
const subBuckets = 64

// Distribution is how often values occurred.
type Distribution struct {
	P10  int64   `json:"p10"`
	P50  int64   `json:"p50"`
	P90  int64   `json:"p90"`
	P99  int64   `json:"p99"`
	Max  int64   `json:"max"`
	Mean float64 `json:"mean"`
	Bins []Bin   `json:"bins,omitempty"` // ascending, each twice as wide as the one before
}

// Bin counts values from the bin before it, exclusive, to Most, inclusive.
type Bin struct {
	Most  int64 `json:"most"`
	Count int64 `json:"count"`
}

// histogram counts values of 0 and more. The zero value is empty.
type histogram struct {
	counts [59 * subBuckets]int64
	n      int64
	sum    float64
	most   int64
}

func (h *histogram) add(v int64) {
	v = max(v, 0)
	h.counts[bucket(uint64(v))]++
	h.n++
	h.sum += float64(v)
	h.most = max(h.most, v)
}

// quantile returns the value at or below which a share q of all lies, 0 if
// there are none.
func (h *histogram) quantile(q float64) int64 {
	rank := int64(q * float64(h.n))
	for i, c := range h.counts {
		if rank -= c; rank < 0 {
			return min(middle(i), h.most)
		}
	}
	return h.most
}

func (h *histogram) distribution() Distribution {
	d := Distribution{P10: h.quantile(0.1), P50: h.quantile(0.5), P90: h.quantile(0.9), P99: h.quantile(0.99), Max: h.most}
	if h.n == 0 {
		return d
	}
	d.Mean = h.sum / float64(h.n)
	d.Bins = []Bin{{0, h.counts[0]}}
	for i, c := range h.counts[1:] {
		low := lowest(i + 1)
		if low > h.most {
			break
		}
		if last := d.Bins[len(d.Bins)-1].Most; low > last {
			d.Bins = append(d.Bins, Bin{Most: 2*last + 1})
		}
		d.Bins[len(d.Bins)-1].Count += c
	}
	return d
}

// bucket numbers below subBuckets stand for themselves; above, each power of
// two has subBuckets of them, chosen by the bits after the highest.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 7
	return shift*subBuckets + int(v>>shift)
}

// lowest is the least value of a bucket.
func lowest(i int) int64 {
	if i < 2*subBuckets {
		return int64(i)
	}
	shift := i/subBuckets - 1
	return int64(subBuckets+i%subBuckets) << shift
}

// middle is the middle of a bucket's range.
func middle(i int) int64 {
	if i < 2*subBuckets {
		return int64(i)
	}
	return lowest(i) + int64(1)<<(i/subBuckets-1)/2
}
