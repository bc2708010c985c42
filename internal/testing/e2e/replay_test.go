package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"cascadekv/internal/replay"
	"cascadekv/internal/simulate"
	"cascadekv/internal/testing/tracetest"
)

// replayed runs cascade trace replay and returns its results, one per policy.
func replayed(t *testing.T, traceFile string, args ...string) []replay.Result {
	t.Helper()
	status, out, said := finish(t, program("cascade"), append([]string{"trace", "replay", "--trace", traceFile, "--json"}, args...)...)
	if status != 0 {
		t.Fatalf("%v: status %d: %s", args, status, tailOf(said))
	}
	if said != "" {
		t.Errorf("%v: standard error has %q, want nothing", args, tailOf(said))
	}
	var several []replay.Result
	if json.Unmarshal([]byte(out), &several) == nil {
		return several
	}
	var one replay.Result
	if err := json.Unmarshal([]byte(out), &one); err != nil {
		t.Fatalf("%v: %v in %s", args, err, tailOf(out))
	}
	return []replay.Result{one}
}

// sound checks what holds of every replay.
func sound(t *testing.T, r replay.Result) {
	t.Helper()
	hits := int64(0)
	for _, tier := range r.Tiers {
		hits += tier.Hits
	}
	if r.WrongBytes != 0 || r.Blocks == 0 || hits != r.HitBlocks || r.HitBlocks+r.PutBlocks+r.RejectedBlocks < r.Blocks {
		t.Errorf("policy %s: %d wrong bytes, %d hits of %d blocks, %d of them by tier, %d put, %d rejected",
			r.Policy, r.WrongBytes, r.HitBlocks, r.Blocks, hits, r.PutBlocks, r.RejectedBlocks)
	}
}

const conversation = "mooncake_conversation_trace.jsonl.gz"

// TestConversationTrace holds the store against the public trace: a cache that
// keeps everything reaches what the trace allows, one whose fast tier has a
// tenth loses nothing, and our policy serves at least as much from that tenth
// as LRU does.
func TestConversationTrace(t *testing.T) {
	file := tracetest.Public(t, conversation)
	const blockBytes, unique = 4096, 182790
	common := []string{"--block-bytes", "4KiB", "--lustre-dir", t.TempDir()}
	for name, tc := range map[string]struct {
		args     []string
		policies []string
		capacity int64 // blocks
	}{
		"unlimited": {nil, []string{"prefix"}, unique},
		"a tenth":   {[]string{"--capacity", "10%", "--policy", "prefix,lru"}, []string{"prefix", "lru"}, unique / 10},
	} {
		t.Run(name, func(t *testing.T) {
			results := replayed(t, file, append(common, tc.args...)...)
			if len(results) != len(tc.policies) {
				t.Fatalf("%d results, want %d", len(results), len(tc.policies))
			}
			for i, r := range results {
				sound(t, r)
				if got := fmt.Sprintf("%.4f", r.HitRatioBlocks); got != "0.3664" || r.Requests != 12031 || r.Blocks != 288500 {
					t.Errorf("hit ratio %s of %d blocks in %d requests, want 0.3664 of 288500 in 12031", got, r.Blocks, r.Requests)
				}
				if got := fmt.Sprintf("%.3f", r.DedupRatio); got != "1.578" {
					t.Errorf("dedup ratio %s, want 1.578", got)
				}
				if r.Policy != tc.policies[i] || r.CapacityBytes != tc.capacity*blockBytes {
					t.Errorf("policy %s with room for %d bytes, want %s with %d", r.Policy, r.CapacityBytes, tc.policies[i], tc.capacity*blockBytes)
				}
				t.Logf("%s: %d hits of shm, %d of lustre", r.Policy, r.Tiers["shm"].Hits, r.Tiers["lustre"].Hits)
			}
			if first, last := results[0], results[len(results)-1]; first.Tiers["shm"].Hits < last.Tiers["shm"].Hits {
				t.Errorf("%s hits %d blocks in shm, %s %d", first.Policy, first.Tiers["shm"].Hits, last.Policy, last.Tiers["shm"].Hits)
			}
		})
	}
}

// TestLiveRankHitsWhatThePolicyDoes: a rank gets the requests of the trace at their times, forty times as
// fast, and hits what its policy alone does with those times and the blocks that fit. Leases would hold
// blocks for as long as the whole run takes.
func TestLiveRankHitsWhatThePolicyDoes(t *testing.T) {
	long(t)
	file := tracetest.Public(t, conversation)
	p := newPlace(t, "234MiB")
	config := filepath.Join(p.dir, "cascade.toml")
	if err := os.WriteFile(config, []byte("lease = \"0s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, p, "--config", config)
	common := []string{"--speed", "40", "--limit", "4000"}
	live := replayed(t, file, append(common, "--socket", r.socket, "--block-bytes", "16KiB")...)[0]
	sound(t, live)

	share := strconv.FormatFloat((float64(r.stats(t).Blocks)+0.5)/float64(live.UniqueBlocks), 'f', -1, 64)
	status, out, said := finish(t, program("cascade"), append([]string{"trace", "replay", "--trace", file, "--json", "--simulate", "--policy", "prefix", "--capacity", share}, common...)...)
	var pure simulate.Result
	if err := json.Unmarshal([]byte(out), &pure); status != 0 || err != nil {
		t.Fatal(status, err, tailOf(said))
	}
	want, lru := pure.Policies["prefix"][0], pure.Policies["lru"][0]
	t.Logf("in %.1f s, with room for %s of the blocks: hit %.4f, prefix alone %.4f, lru %.4f", live.Seconds, share, live.HitRatioBlocks, want, lru)
	if live.Policy != "prefix" || math.Abs(live.HitRatioBlocks-want) > 0.01 {
		t.Errorf("%s hits %v of the blocks, the policy alone %v", live.Policy, live.HitRatioBlocks, want)
	}
}

// TestReplayForms goes through the forms of the command that other tools rely
// on, with a trace that every machine has.
func TestReplayForms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl.gz")
	if status, _, said := finish(t, program("cascade"), "trace", "synth", "-o", file, "--requests", "600"); status != 0 {
		t.Fatal(said)
	}
	var info struct {
		Requests int     `json:"requests"`
		Unique   int64   `json:"unique_blocks"`
		Hit      float64 `json:"hit_ratio_blocks"`
	}
	if _, out, said := finish(t, program("cascade"), "trace", "info", "--trace", file, "--json"); json.Unmarshal([]byte(out), &info) != nil {
		t.Fatalf("%s%s", out, said)
	}
	for name, tc := range map[string]struct {
		args     []string
		share    float64 // of the unique blocks
		lossless bool
		tiers    int
	}{
		"as it is":                {nil, 1, true, 2},
		"small shm":               {[]string{"--capacity", "0.1"}, 0.1, true, 2},
		"shm alone":               {[]string{"--no-lustre"}, 1, true, 1},
		"small shm alone":         {[]string{"--no-lustre", "--capacity", "10%"}, 0.1, false, 1},
		"another policy":          {[]string{"--policy", "lru", "--capacity", "0.5"}, 0.5, true, 2},
		"the paper's policy":      {[]string{"--policy", "paper", "--no-lustre", "--capacity", "0.2"}, 0.2, false, 1},
		"several at the time":     {[]string{"--workers", "4", "--capacity", "0.3"}, 0.3, false, 2},
		"blocks of an odd size":   {[]string{"--block-bytes", "1001B", "--capacity", "0.1"}, 0.1, true, 2},
		"the first 50 requests":   {[]string{"--limit", "50", "--no-lustre"}, 0, false, 1},
		"lustre in a given place": {[]string{"--lustre-dir", t.TempDir()}, 1, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if name != "blocks of an odd size" {
				args = append([]string{"--block-bytes", "4KiB"}, args...)
			}
			r := replayed(t, file, args...)[0]
			sound(t, r)
			if len(r.Tiers) != tc.tiers {
				t.Errorf("tiers %v, want %d", r.TierOrder, tc.tiers)
			}
			if want := int64(tc.share*float64(info.Unique)) * int64(r.BlockBytes); tc.share > 0 && r.CapacityBytes != want {
				t.Errorf("capacity %d, want %d", r.CapacityBytes, want)
			}
			if tc.lossless && r.HitRatioBlocks != info.Hit || r.HitRatioBlocks > info.Hit {
				t.Errorf("hit ratio %v, the trace allows %v", r.HitRatioBlocks, info.Hit)
			}
		})
	}
}
