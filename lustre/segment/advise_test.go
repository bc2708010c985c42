package segment

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// listener notes what it is told. While block is set it does not answer.
type listener struct {
	mu    sync.Mutex
	told  []string
	block chan struct{}
	deaf  bool
}

func (l *listener) WillRead(path string, off, n int64) bool {
	l.mu.Lock()
	l.told = append(l.told, fmt.Sprintf("%s %d..%d", path[len(path)-len("000000.bin"):], off, off+n))
	block, deaf := l.block, l.deaf
	l.mu.Unlock()
	if block != nil {
		<-block
	}
	return !deaf
}

func (l *listener) calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

// heard waits for n calls, and until the store has their answers.
func (l *listener) heard(t *testing.T, s *opened, n int) []string {
	t.Helper()
	for range 5000 {
		if calls := l.calls(); len(calls) >= n && !s.advice.alone.Busy() {
			return calls
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("told of %v", l.calls())
	return nil
}

const advisedSize = 2 * maxGap // too large for the gap that one call reads over

// advised is a store of so many blocks in a row, read by way of a listener.
func advised(t *testing.T, blocks int, l *listener) (*opened, []tiers.Item) {
	o := testOptions(t.TempDir(), 1)
	o.Advice = l
	s := openStore(t, o)
	var items []tiers.Item
	for i := range blocks {
		items = append(items, testItem(uint64(i+1), advisedSize))
	}
	put(t, s, items...)
	return s, items
}

// TestAdvice: servers are told of a batch of many calls that lie close to each
// other, once, and of nothing else.
func TestAdvice(t *testing.T) {
	l := &listener{}
	s, items := advised(t, 200, l)
	for name, quiet := range map[string][]tiers.Item{
		"neighbours": items[:200], // 26 MB in 13 calls
		"few":        everyNth(items, 10),
		"sparse":     everyNth(items, 5),
	} {
		wantBatch(t, s, quiet, nil)
		if told := l.calls(); len(told) != 0 {
			t.Errorf("%s: told of %v", name, told)
		}
	}
	wantBatch(t, s, everyNth(items, 3), nil)
	_, first := s.where(t, items[0].Info.ID)
	want := fmt.Sprintf("000000.bin %d..%d", first, first+198*advisedSize+advisedSize)
	if told := l.heard(t, s, 1); len(told) != 1 || told[0] != want {
		t.Errorf("told of %v, want %s", told, want)
	}
}

// TestAdviceHoldsUpNobody: who tells the servers may hang; reads do not, and
// nothing piles up. Nobody is told again who does not listen.
func TestAdviceHoldsUpNobody(t *testing.T) {
	l := &listener{block: make(chan struct{})}
	s, items := advised(t, 120, l)
	for range 3 {
		wantBatch(t, s, everyNth(items, 3), nil)
	}
	if told := l.calls(); len(told) > 1 {
		t.Errorf("told of %v while the first call hangs", told)
	}
	l.mu.Lock()
	block := l.block
	l.block, l.deaf = nil, true
	l.mu.Unlock()
	close(block)
	l.heard(t, s, 1)
	wantBatch(t, s, everyNth(items, 3), nil)
	l.heard(t, s, 2)
	wantBatch(t, s, everyNth(items, 3), nil)
	if told := l.heard(t, s, 2); len(told) > 2 {
		t.Errorf("told of %v after nobody listened", told)
	}
}

// TestMergeIsAdvised: a merge reads block after block, and tells of them before.
func TestMergeIsAdvised(t *testing.T) {
	l := &listener{}
	o := testOptions(t.TempDir(), 1)
	o.Advice, o.SegmentBytes = l, 1<<20
	s := openStore(t, o)
	var items []tiers.Item
	for i := range 40 {
		items = append(items, testItem(uint64(i+1), 40_000))
		put(t, s, items[i])
	}
	for i, it := range items {
		if i%3 > 0 {
			if err := s.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	done, err := s.Merge(t.Context(), 0, func([]block.ID) {})
	if err != nil || done.Blocks == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	l.heard(t, s, 1)
}
