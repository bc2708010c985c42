package policy

import (
	"math/rand"
	"testing"
)

// What policies find of the conversation trace, under the prefix rule, in tiers of 1, 2, 5, 10,
// 20 and 40 % of its distinct blocks. Other simulators got these figures: of paper and lru to
// the last digit but one, of arc within some thousandths.
func TestConversation(t *testing.T) {
	requests := readTrace(t, "mooncake_conversation_trace.jsonl.gz")
	unique := uniqueBlocks(requests)
	shares := []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.4}
	for name, c := range map[string]struct {
		within float64
		want   []float64
	}{
		Paper:  {0.01, []float64{0.0582, 0.0833, 0.1276, 0.1949, 0.3069, 0.3591}},
		LRU:    {0.0001, []float64{0.0525, 0.0793, 0.1958, 0.2789, 0.3453, 0.3604}},
		ARC:    {0.005, []float64{0.0649, 0.0924, 0.2122, 0.2841, 0.3201, 0.3596}},
		Prefix: {0.005, []float64{0.1107, 0.1547, 0.2266, 0.2955, 0.3461, 0.3615}},
	} {
		for i, want := range c.want {
			if testing.Short() && i != 3 {
				continue
			}
			got := newFlatTier(t, name, int(shares[i]*float64(unique))).hitRatio(requests)
			if got < want-c.within || got > want+c.within {
				t.Errorf("%s at %g of the blocks: %.4f, want %.4f", name, shares[i], got, want)
			}
		}
	}
}

// A tier that holds everything finds every block but the first of its kind.
func TestUnlimitedTierFindsEveryRepeat(t *testing.T) {
	requests := readTrace(t, "mooncake_conversation_trace.jsonl.gz")
	unique := uniqueBlocks(requests)
	blocks := 0
	for _, r := range requests {
		blocks += len(r.Blocks)
	}
	want := 1 - float64(unique)/float64(blocks)
	if got := newFlatTier(t, Prefix, unique).hitRatio(requests); got != want {
		t.Errorf("hit ratio %v, want %v", got, want)
	}
}

// Eviction must never leave a hole in a chain however small the tier; flatTier checks it at
// every victim and every request.
func leavesNoHole(t *testing.T, name string) {
	for _, capacity := range []int{1, 2, 7, 60, 400} {
		requests := randomRequests(rand.New(rand.NewSource(int64(capacity))), 2000)
		tier := newFlatTier(t, name, capacity)
		tier.hitRatio(requests)
		if tier.policy.Len() != len(tier.resident) || len(tier.resident) > capacity {
			t.Errorf("capacity %d: policy knows %d blocks, tier has %d", capacity, tier.policy.Len(), len(tier.resident))
		}
	}
}

// randomRequests grows chains that branch: each request is an earlier one, cut
// at a random place and extended.
func randomRequests(rng *rand.Rand, n int) []request {
	requests := []request{{Blocks: []uint64{0}}}
	next := uint64(1)
	for i := 1; i < n; i++ {
		from := requests[rng.Intn(len(requests))].Blocks
		chain := append([]uint64(nil), from[:1+rng.Intn(len(from))]...)
		for range rng.Intn(5) {
			chain = append(chain, next)
			next++
		}
		requests = append(requests, request{Timestamp: int64(i), Blocks: chain})
	}
	return requests
}
