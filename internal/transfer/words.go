package transfer

import (
	"context"
	"slices"
	"sync"
	"time"

	"cascadekv/gpu/direct"
	"cascadekv/internal/fault"
)

// words looks at the event words that jobs wait for, of all rings: one goroutine does, as long as there are such jobs. It is safe for concurrent
// use.
type words struct {
	wake chan struct{} // of capacity 1: there is a wait that is new

	mu struct {
		sync.Mutex
		of   map[wordOf]*awaited
		runs bool
	}
}

// wordOf is a word of a ring.
type wordOf struct {
	ring *direct.Ring
	word int
}

// awaited is a word that jobs wait for.
type awaited struct {
	last  uint32 // its value when it was last looked at
	waits []*wait
}

// wait is one job's, for a word to reach a value.
type wait struct {
	value uint32
	came  chan struct{}
}

func (w *wait) over(word uint32) bool { return int32(word-w.value) >= 0 }

// Looks are lookShare times as long apart as the last wait is old, within bounds, and as a look takes: so they cost at most that part of a core.
const (
	lookShare  = 16
	leastPause = 50 * time.Microsecond
	mostPause  = 4 * time.Millisecond
)

// await waits until a word has come, ctx ends or patience does, and reports whether the word has come.
func (w *words) await(ctx context.Context, ring *direct.Ring, a After, patience time.Duration) (came bool) {
	if ring.Came(a.Word, a.Value) {
		return true
	}
	key, own := wordOf{ring, a.Word}, &wait{a.Value, make(chan struct{})}
	w.add(key, own)
	defer w.remove(key, own)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-own.came:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

func (w *words) add(key wordOf, own *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.of == nil {
		w.mu.of, w.wake = map[wordOf]*awaited{}, make(chan struct{}, 1)
	}
	now := key.ring.Word(key.word)
	if own.over(now) { // since it was looked at
		close(own.came)
		return
	}
	of := w.mu.of[key]
	if of == nil {
		of = &awaited{last: now}
		w.mu.of[key] = of
	}
	of.waits = append(of.waits, own)
	if !w.mu.runs {
		w.mu.runs = true
		go w.run()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// remove takes a wait out that may be over.
func (w *words) remove(key wordOf, own *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.mu.of[key]
	if of == nil {
		return
	}
	if i := slices.Index(of.waits, own); i >= 0 {
		of.waits = slices.Delete(of.waits, i, i+1)
	}
	if len(of.waits) == 0 {
		delete(w.mu.of, key)
	}
}

// run looks at the words until nobody waits for one.
func (w *words) run() {
	defer fault.Guard()()
	pause := time.NewTimer(0)
	defer pause.Stop()
	newest := time.Now()
	for {
		began := time.Now()
		came, left := w.look()
		if !left {
			return
		}
		now := time.Now()
		if came {
			newest = now // others may be about to
		}
		pause.Reset(max(min(max(now.Sub(newest)/lookShare, leastPause), mostPause), lookShare*now.Sub(began)))
		select {
		case <-pause.C:
		case <-w.wake:
			newest = time.Now()
		}
	}
}

// look ends the waits whose words have come. It reports whether there were some, and whether there are others; else run is to end.
func (w *words) look() (came, left bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, of := range w.mu.of {
		now := key.ring.Word(key.word)
		if now == of.last {
			continue
		}
		of.last = now
		of.waits = slices.DeleteFunc(of.waits, func(own *wait) bool {
			if !own.over(now) {
				return false
			}
			close(own.came)
			came = true
			return true
		})
		if len(of.waits) == 0 {
			delete(w.mu.of, key)
		}
	}
	left = len(w.mu.of) > 0
	w.mu.runs = left
	return came, left
}
