package loglimit

import (
	"sync"
	"time"
)

// Defaults of a Limiter.
const (
	DefaultEvery = 10 * time.Second
	DefaultKeys  = 16
)

// Limiter decides which events are logged: in each period the first event of
// each key, for so many keys. All others are counted, and the count goes into
// the next line, so that lines and counts together make all events. The zero
// value is ready for use; its methods are safe for concurrent use, and its memory
// is bounded by Keys. It must not be copied after first use.
type Limiter struct {
	Every time.Duration // length of a period, 0: DefaultEvery
	Keys  int           // lines in a period, one for each key, 0: DefaultKeys

	now func() time.Time // nil: time.Now

	mu         sync.Mutex
	began      time.Time // of the period
	logged     map[string]struct{}
	suppressed uint64
}

// Allow reports whether an event is to be logged, and then how many were
// suppressed since the last one that was, of any key. A key is kept for one
// period: keep it short.
//
//	if n, ok := limit.Allow(peer.String()); ok {
//		log.Warn("connection refused", "from", peer, "suppressed", n)
//	}
func (l *Limiter) Allow(key string) (suppressed uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	most := l.Keys
	if most <= 0 {
		most = DefaultKeys
	}
	if _, again := l.logged[key]; again || len(l.logged) >= most {
		l.suppressed++
		return 0, false
	}
	l.logged[key] = struct{}{}
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}

// Rest returns how many events were suppressed, once the period is over in which
// they were; 0 before. What it returns is in no later count. It is for callers
// that log what remains after the last event, from time to time.
func (l *Limiter) Rest() (suppressed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.turnLocked() {
		return 0
	}
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed
}

// turnLocked begins a new period if the last one is over, or none was begun.
func (l *Limiter) turnLocked() bool {
	now, every := time.Now(), l.Every
	if l.now != nil {
		now = l.now()
	}
	if every <= 0 {
		every = DefaultEvery
	}
	if l.logged != nil && now.Sub(l.began) < every {
		return false
	}
	l.began, l.logged = now, map[string]struct{}{}
	return true
}
