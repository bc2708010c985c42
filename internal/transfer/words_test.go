package transfer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
)

// wantNoWaits fails unless nobody waits for a word, and no goroutine looks for one, soon.
func (w *words) wantNoWaits(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n, runs := len(w.mu.of), w.mu.runs
		w.mu.Unlock()
		if n == 0 && !runs {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d words are waited for, one goroutine looks: %v", n, runs)
		}
	}
}

// TestWords: a wait ends when its word has come, also at a value beyond its own, and not before; or when its context or its patience ends. Nothing is left then.
func TestWords(t *testing.T) {
	r := newRingRig(t, direct.Options{Engine: gio.EngineUser}, nil)
	const waits, rounds = 100, uint32(40)
	start := ^uint32(0) - 20 // the values wrap
	var raised [direct.Words + 1]atomic.Uint32
	for word := 1; word <= direct.Words; word++ {
		r.raise(word, start)
		raised[word].Store(start)
	}
	gone, cancel := context.WithCancel(t.Context())
	var ended, others sync.WaitGroup
	for i := range waits {
		word, value := 1+i%direct.Words, start+1+uint32(i)%rounds
		ended.Go(func() {
			if !r.Pool.words.await(t.Context(), r.at.ring, After{word, value}, time.Hour) || int32(raised[word].Load()-value) < 0 {
				t.Errorf("word %d, value %#x: it has not come", word, value)
			}
		})
		others.Go(func() {
			if r.Pool.words.await(gone, r.at.ring, After{word, start + 1<<20}, time.Hour) {
				t.Error("it has come")
			}
		})
		ended.Go(func() {
			if r.Pool.words.await(t.Context(), r.at.ring, After{word, start + 1<<20}, time.Millisecond) {
				t.Error("it has come")
			}
		})
	}
	for value := start + 1; value != start+1+rounds; value++ {
		for word := 1; word <= direct.Words; word++ {
			if (int(value)+word)%3 > 0 || value == start+rounds { // it passes some values
				raised[word].Store(value)
				r.raise(word, value)
			}
		}
		time.Sleep(time.Millisecond)
	}
	ended.Wait()
	cancel()
	others.Wait()
	r.Pool.words.wantNoWaits(t)
}

// TestWordsBetweenLooks: whatever comes between two looks at a word, a wait whose value it has at a look is over then, and so is one that begins when it has it.
func TestWordsBetweenLooks(t *testing.T) {
	r := newRingRig(t, direct.Options{Engine: gio.EngineUser}, nil)
	w := &words{}
	w.mu.runs = true // this test looks
	key := wordOf{r.at.ring, 1}
	add := func(value uint32) *wait {
		own := &wait{value, make(chan struct{})}
		w.add(key, own)
		return own
	}
	came := func(own *wait) bool {
		select {
		case <-own.came:
			return true
		default:
			return false
		}
	}
	r.raise(1, 4)
	a, c := add(5), add(7)
	w.look()
	r.raise(1, 5)
	b := add(6) // one less than its value
	w.look()
	if !came(a) || came(b) || came(c) {
		t.Errorf("at 5: %v %v %v", came(a), came(b), came(c))
	}
	r.raise(1, 7)
	if d := add(7); !came(d) {
		t.Error("one that begins when its word has come")
	}
	r.raise(1, 6) // nobody should
	if some, left := w.look(); !some || !left || !came(b) || came(c) {
		t.Errorf("at 6: %v %v", came(b), came(c))
	}
	w.remove(key, c)
	if some, left := w.look(); some || left || w.mu.runs {
		t.Error("nobody waits, and it is looked at")
	}
}
