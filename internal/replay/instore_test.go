package replay

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"cascadekv/cascade"
	"cascadekv/cascade/policy"
	"cascadekv/internal/testing/tracetest"
	"cascadekv/internal/trace"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// openStore returns a target on a store with one memory tier of that many bytes.
func openStore(ctx context.Context, bytes int64, blockBytes int, name string) (Target, error) {
	tier, err := host.Open(bytes)
	if err != nil {
		return nil, err
	}
	s, err := cascade.Open(ctx, cascade.Options{Memory: []tiers.Memory{tier}, Policy: name, NewPolicy: newPolicy})
	if err != nil {
		return nil, errors.Join(err, tier.Close())
	}
	return NewStoreTarget(s, StoreOptions{BlockBytes: blockBytes, Close: s.Close}), nil
}

// newPolicy is policy.New with a policy of these tests.
func newPolicy(name string, capacity int64) (policy.Policy, error) {
	if name == "fifo" {
		return newFIFO(capacity), nil
	}
	return policy.New(name, capacity)
}

// TestAPolicyOfOnesOwn: a replay runs with a policy that the store does not have,
// which refuses blocks and learns of misses and evictions.
func TestAPolicyOfOnesOwn(t *testing.T) {
	const blockBytes = 4096
	results, err := Run(t.Context(), Options{
		Trace: func() (trace.Source, error) { return trace.NewSynth(trace.SynthOptions{Requests: 600}) },
		NewTarget: func(ctx context.Context, name string) (Target, error) {
			return openStore(ctx, 4<<20, blockBytes, name)
		},
		BlockBytes: blockBytes, Workers: 1, Policies: []string{"fifo", "lru"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if r.Policy != "fifo" || r.WrongBytes != 0 || r.HitBlocks == 0 || r.RejectedBlocks == 0 || results[1].RejectedBlocks != 0 {
		t.Errorf("policy %q: %d wrong bytes, %d hits, %d blocks not admitted; lru: %d", r.Policy, r.WrongBytes, r.HitBlocks, r.RejectedBlocks, results[1].RejectedBlocks)
	}
}

// public returns a source of a public trace.
func public(t *testing.T, name string) func() (trace.Source, error) {
	path := tracetest.Public(t, name)
	return func() (trace.Source, error) { return trace.Open(path, trace.ReaderOptions{}) }
}

// A store with room for everything hits what the trace allows: 0.3664 of the
// conversation trace's blocks.
func TestStoreReachesTheLimitOfAPublicTrace(t *testing.T) {
	const blockBytes = 256
	results, err := Run(t.Context(), Options{
		Trace: public(t, "mooncake_conversation_trace.jsonl.gz"), BlockBytes: blockBytes,
		NewTarget: func(ctx context.Context, policy string) (Target, error) {
			return openStore(ctx, 1<<30, blockBytes, policy)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if got := fmt.Sprintf("%.4f", r.HitRatioBlocks); got != "0.3664" || r.HitBlocks != 105710 {
		t.Errorf("hit ratio %s with %d blocks, want 0.3664 with 105710", got, r.HitBlocks)
	}
	if r.Requests != 12031 || r.WrongBytes != 0 || r.RejectedBlocks != 0 || r.PutBlocks != r.UniqueBlocks {
		t.Errorf("got %d requests, %d wrong bytes, %d rejected, %d of %d blocks put", r.Requests, r.WrongBytes, r.RejectedBlocks, r.PutBlocks, r.UniqueBlocks)
	}
}

// A store that is too small serves fewer blocks, and none of them wrong.
func TestSmallStore(t *testing.T) {
	const blockBytes = 4096
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			results, err := Run(t.Context(), Options{
				Trace: func() (trace.Source, error) { return trace.NewSynth(trace.SynthOptions{Requests: 600}) },
				NewTarget: func(ctx context.Context, policy string) (Target, error) {
					return openStore(ctx, 4<<20, blockBytes, policy)
				},
				BlockBytes: blockBytes, Workers: workers, Policies: []string{"prefix", "lru", "paper"},
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if want := []string{"prefix", "lru", "paper"}[i]; r.Policy != want {
					t.Errorf("run %d had policy %q, want %q", i, r.Policy, want)
				}
				if r.WrongBytes != 0 || r.HitBlocks == 0 || r.HitRatioBlocks >= r.UnlimitedHitRatio {
					t.Errorf("%s: %d wrong bytes, hit ratio %v of %v", r.Policy, r.WrongBytes, r.HitRatioBlocks, r.UnlimitedHitRatio)
				}
			}
		})
	}
}
