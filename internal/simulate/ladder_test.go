package simulate

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/trace"
)

func ladderOf(t *testing.T, unique int, levels ...Level) *ladder {
	t.Helper()
	l, err := newLadder(levels, unique)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLadderByHand: what a small ladder hits and writes is as worked out on paper.
func TestLadderByHand(t *testing.T) {
	var requests []trace.Request
	for i, hashes := range [][]uint64{
		{1, 2},    // missing
		{3, 4},    // 2 and then 1 go below
		{1, 2},    // both from below; 4 and then 3 go below
		{1, 2},    // both from the top
		{3, 4, 5}, // two from below; 1 and 2 are there already; 5 goes below, since nothing may leave for it
		{9, 9},    // missing
	} {
		requests = append(requests, trace.Request{Timestamp: int64(i), InputTokens: len(hashes) * trace.BlockTokens, OutputTokens: 3, Hashes: hashes})
	}
	r, err := RunLadders(t.Context(), Options{Trace: &list{requests: requests}}, [][]Level{{{policy.LRU, 2}, {policy.LRU, 0}, {policy.LRU, 10}}, {}})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Results); got != "[{[2 0 4] [9 0 5] {0 0 0} 0s} {[] [] {0 0 0} 0s}]" {
		t.Errorf("%s", got)
	}
	if r.Requests != 6 || r.Blocks != 13 || r.UniqueBlocks != 6 || r.PromptTokens != 13*trace.BlockTokens || r.AnswerTokens != 18 || r.Span != 5*time.Millisecond {
		t.Errorf("%+v", r)
	}
}

// TestLadderOfOneLevelIsATier, but that a put is not refused, as only one policy would.
func TestLadderOfOneLevelIsATier(t *testing.T) {
	for _, name := range Policies() {
		if name == policy.Prefix {
			continue
		}
		for seed := range uint64(10) {
			s := spoolOf(t, chains(seed, 60, 400))
			for _, capacity := range []int{1, 3, 10, 30, 60} {
				want := drive(t, s, policyTier(t, name, capacity, s.unique), func(*request) {})
				if got := drive(t, s, ladderOf(t, s.unique, Level{name, capacity}), func(*request) {}); got != want {
					t.Errorf("%s, seed %d, %d blocks: %d hits, a tier %d", name, seed, capacity, got, want)
				}
			}
		}
	}
}

// TestLadderHasNoHoles: the parent of a block that is somewhere is somewhere; each reference is a hit of one level or computed; what the levels have agrees; with
// room below for all, nothing is lost.
func TestLadderHasNoHoles(t *testing.T) {
	for _, name := range Policies() {
		for seed := range uint64(4) {
			requests := chains(seed, 50, 300)
			s := spoolOf(t, requests)
			for _, rooms := range [][]int{{5, 50}, {20, 25}, {2, 3, 45}, {50}, {3, 30, 50}, {10, 2, 1}} {
				var levels []Level
				for _, blocks := range rooms {
					levels = append(levels, Level{name, blocks})
				}
				l := ladderOf(t, s.unique, levels...)
				computed, last := int64(0), rooms[len(rooms)-1]
				hits := drive(t, s, l, func(r *request) {
					found := 0
					for _, f := range l.found {
						found += f.blocks
					}
					computed += int64(len(r.blocks) - found)
					checkLadder(t, l, last >= 25)
				})
				served := int64(0)
				for _, lv := range l.levels {
					served += lv.hits
				}
				if served+computed != s.references || served != int64(hits) {
					t.Errorf("%s: %d served and %d computed of %d", name, served, computed, s.references)
				}
				if last >= s.unique && served != s.unlimited {
					t.Errorf("%s, %v: %d hits, %d without limits", name, rooms, served, s.unlimited)
				}
			}
		}
	}
}

func checkLadder(t *testing.T, l *ladder, roomy bool) {
	t.Helper()
	for at, lv := range l.levels {
		count, children := 0, make([]uint32, len(lv.children))
		for b, n := range lv.nodes {
			if n != policy.NoNode {
				if count++; lv.numbers[n] != uint32(b) {
					t.Fatalf("block %d is at the node of %d", b, lv.numbers[n])
				}
				if p := l.parents[b]; roomy && p != 0 && l.fastest(p-1) == nil {
					t.Fatalf("%s: block %d of level %d without its parent", lv.policy.Name(), b, at)
				}
			}
			for _, faster := range l.levels[:at+1] {
				if faster.nodes[b] != policy.NoNode && l.parents[b] != 0 {
					children[l.parents[b]-1]++
				}
			}
		}
		if count != lv.count || count > lv.capacity || count != lv.policy.Len() || len(lv.held) > 0 || !slices.Equal(children, lv.children) {
			t.Fatalf("level %d: %d blocks, counted as %d and %d, in room for %d", at, count, lv.count, lv.policy.Len(), lv.capacity)
		}
	}
}

func TestLaddersAreSimulatedOnce(t *testing.T) {
	g := &grid{s: &spool{unique: 100}}
	of := g.addLadders([][]Level{
		{{policy.LRU, 50}, {policy.LRU, 100}},
		{{policy.LRU, 50}, {policy.LRU, 1000}}, // room beyond all blocks
		{{policy.LRU, 100}, {policy.LRU, 100}},
		{{policy.LRU, 200}, {policy.LRU, 0}}, // nothing gets below
		{{policy.LRU, 50}, {policy.FIFO, 100}},
	})
	if len(g.cells) != 3 || of[0] != of[1] || of[2] != of[3] || of[0] == of[4] {
		t.Errorf("%d cells of %v", len(g.cells), of)
	}
}

// TestLaddersModelTTFT: a level beside another makes nothing slower, and all computed is slowest.
func TestLaddersModelTTFT(t *testing.T) {
	model := DefaultTTFTModel
	model.Engines, model.Loads = 2, []Load{{30e9, time.Millisecond}, {7e9, 10 * time.Millisecond}}
	r, err := RunLadders(t.Context(), Options{Trace: &list{requests: chains(5, 300, 2000)}, TTFT: &model, Workers: 2},
		[][]Level{{}, {{policy.Prefix, 50}, {policy.Prefix, 0}}, {{policy.Prefix, 50}, {policy.Prefix, 300}}})
	if err != nil {
		t.Fatal(err)
	}
	none, one, both := r.Results[0], r.Results[1], r.Results[2]
	if none.TTFT.P90 <= one.TTFT.P90 || one.TTFT.P90 <= both.TTFT.P90 || both.TTFT.P50 <= 0 || none.End < one.End || both.End < r.Span {
		t.Errorf("%+v", r)
	}
	for name, o := range map[string]Options{
		"no load": {Trace: &list{}, TTFT: &TTFTModel{PrefillTokensPerSecond: 1, BytesPerToken: 1}}, "no trace": {},
	} {
		if _, err := RunLadders(t.Context(), o, [][]Level{{{policy.LRU, 1}}}); !errors.Is(err, ErrBadOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := RunLadders(t.Context(), Options{Trace: &list{}}, [][]Level{{{"fastest", 1}}}); !errors.Is(err, ErrBadOptions) {
		t.Errorf("an unknown policy: %v", err)
	}
}
