package replay

import (
	"math/bits"
	"time"
)

// subBuckets divide each power of two, so a bucket is at most 1/16 wide and a
// quantile, given as its middle, at most 3.2 % off.
const subBuckets = 16

// histogram counts durations in buckets of fixed bounds, from 1 ns to
// centuries; adding one allocates nothing. The zero value is empty.
type histogram struct {
	counts [61 * subBuckets]uint64
	n      uint64
	sum    time.Duration
	most   time.Duration
}

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))]++
	h.n++
	h.sum += d
	h.most = max(h.most, d)
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.most = max(h.most, o.most)
}

// quantile returns the duration below which a share q of them lies, 0 if none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.n))
	seen := uint64(0)
	for i, c := range h.counts {
		if seen += c; c > 0 && seen > rank {
			return min(middle(i), h.most)
		}
	}
	return h.most
}

// bucket numbers below subBuckets stand for themselves; above, each power of
// two has subBuckets of them, chosen by the bits after the highest.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 5
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

// middle is the middle of a bucket's range.
func middle(i int) time.Duration {
	if i < 2*subBuckets {
		return time.Duration(i)
	}
	shift := i/subBuckets - 1
	low := uint64(subBuckets+i%subBuckets) << shift
	return time.Duration(low + 1<<shift/2)
}
