package policy

import (
	"math/rand"
	"testing"
)

// The default must find at least as many blocks as LRU does on real chats;
// the figures of LRU and SLRU-20 are those of another simulator.
func TestPrefixFindsMoreThanLRUOnConversation(t *testing.T) {
	requests := readTrace(t, "mooncake_conversation_trace.jsonl.gz")
	unique := uniqueBlocks(requests)
	prefix := newFlatTier(t, Prefix, unique/10).hitRatio(requests)
	lru := newFlatTier(t, LRU, unique/10).hitRatio(requests)
	t.Logf("hit ratio at 10 %% of %d blocks: prefix %.4f, lru %.4f", unique, prefix, lru)
	if prefix < lru {
		t.Errorf("prefix finds %.4f of the blocks, lru %.4f", prefix, lru)
	}
	for name, c := range map[string]struct{ got, want float64 }{
		"prefix": {prefix, 0.288},
		"lru":    {lru, 0.279},
	} {
		if c.got < c.want-0.001 || c.got > c.want+0.001 {
			t.Errorf("%s: hit ratio %.4f, another simulator got %.3f", name, c.got, c.want)
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

// Eviction must never leave a hole in a chain, whatever the policy and however
// small the tier; flatTier checks it at every victim and every request.
func TestNoPolicyLeavesAHole(t *testing.T) {
	for _, name := range Names() {
		for _, capacity := range []int{1, 2, 7, 60, 400} {
			requests := randomRequests(rand.New(rand.NewSource(int64(capacity))), 2000)
			tier := newFlatTier(t, name, capacity)
			tier.hitRatio(requests)
			if tier.policy.Len() != len(tier.resident) || len(tier.resident) > capacity {
				t.Errorf("%s, capacity %d: policy knows %d blocks, tier has %d",
					name, capacity, tier.policy.Len(), len(tier.resident))
			}
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
