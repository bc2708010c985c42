package sim

import (
	"context"
	"math"
	"sync/atomic"

	"cascadekv/dht/fabric"
)

// cost is what one get has caused so far.
type cost struct{ calls, reads atomic.Int64 }

func (c *cost) hops() int { return int(c.calls.Load() + c.reads.Load()) }

// costKey marks the context of a get.
type costKey struct{}

func withCost(ctx context.Context) (context.Context, *cost) {
	c := &cost{}
	return context.WithValue(ctx, costKey{}, c), c
}

// counter is a rank's fabric. It books each operation on the get that it is
// for; block bytes that no get asked for go to moved.
type counter struct {
	fabric.Fabric
	moved *atomic.Int64
}

// Call implements fabric.Fabric.
func (f counter) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	if c, ok := ctx.Value(costKey{}).(*cost); ok {
		c.calls.Add(1)
	}
	return f.Fabric.Call(ctx, to, req)
}

// Read implements fabric.Fabric.
func (f counter) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	if c, ok := ctx.Value(costKey{}).(*cost); ok {
		c.reads.Add(1)
	} else {
		f.moved.Add(src.Length)
	}
	return f.Fabric.Read(ctx, from, src, dst)
}

// histogram counts small numbers; the last one stands for all above. It is safe
// for concurrent use.
type histogram [1 << 11]atomic.Int64

func (h *histogram) add(v int) { h[min(v, len(h)-1)].Add(1) }

// sum returns how many numbers there are, and their sum.
func (h *histogram) sum() (count, total int) {
	for v := range h {
		n := int(h[v].Load())
		count, total = count+n, total+n*v
	}
	return count, total
}

func (h *histogram) mean() float64 {
	count, total := h.sum()
	return ratio(float64(total), float64(count))
}

// quantile returns the smallest number that at least the part q of all does
// not exceed; 1 gives the largest.
func (h *histogram) quantile(q float64) int {
	count, _ := h.sum()
	need := int64(math.Ceil(q * float64(count)))
	for v := range h {
		if need -= h[v].Load(); need <= 0 {
			return v
		}
	}
	return len(h) - 1
}

// ratio is a/b, and 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// unevenness is the largest of list divided by the mean.
func unevenness(list []int) float64 {
	most, sum := 0, 0
	for _, v := range list {
		most, sum = max(most, v), sum+v
	}
	return ratio(float64(most)*float64(len(list)), float64(sum))
}
