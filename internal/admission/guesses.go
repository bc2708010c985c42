package admission

import (
	"sync"
	"time"
)

// Bounds of guessing. A source is a user of this machine or an address, see
// Source; the rank's own user and root can read the password anyway.
const (
	// FreeGuesses is how many may fail before a source has to wait, at first for
	// FirstBackoff and after each failure twice as long, up to maxBackoff.
	FreeGuesses  = 3
	FirstBackoff = 250 * time.Millisecond
	maxBackoff   = 10 * time.Second

	// forgetGuesses is how long after its last failure a source is forgotten.
	forgetGuesses = 10 * time.Minute

	// maxSources are remembered; all others count as one.
	maxSources = 1024
)

// Guesses slow down those who try passwords. The zero value has seen none; it is
// safe for concurrent use.
type Guesses struct {
	now func() time.Time // nil: time.Now

	mu struct {
		sync.Mutex
		of     map[string]*guess // by source
		others guess             // of sources for which there was no room
	}
}

// guess is what is remembered of a source.
type guess struct {
	failed int
	last   time.Time // failure
	until  time.Time // no attempt is looked at
}

// Try calls right, which compares a password, unless the source has to wait. It
// returns how long that is, or the failures of the source so far. Attempts are
// compared one by one, so that no more are made at the same time.
func (g *Guesses) Try(from string, right func() bool) (ok bool, wait time.Duration, failed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.now != nil {
		now = g.now()
	}
	at := g.mu.of[from]
	if at == nil && len(g.mu.of) >= maxSources {
		at = &g.mu.others
	}
	if at != nil {
		if now.Sub(at.last) > forgetGuesses {
			*at = guess{}
		}
		if wait = at.until.Sub(now); wait > 0 {
			return false, wait, at.failed
		}
	}
	if right() {
		return true, 0, 0
	}
	if at == nil || at == &g.mu.others {
		at = g.enterLocked(from, now)
	}
	at.failed++
	at.last = now
	if more := at.failed - FreeGuesses; more >= 0 {
		at.until = now.Add(min(maxBackoff, FirstBackoff<<min(more, 10)))
	}
	return false, 0, at.failed
}

// enterLocked makes room for a source, if only that of all others.
func (g *Guesses) enterLocked(from string, now time.Time) *guess {
	if g.mu.of == nil {
		g.mu.of = map[string]*guess{}
	}
	if len(g.mu.of) >= maxSources {
		for who, at := range g.mu.of {
			if now.Sub(at.last) > forgetGuesses {
				delete(g.mu.of, who)
			}
		}
	}
	if len(g.mu.of) >= maxSources {
		return &g.mu.others
	}
	at := &guess{}
	g.mu.of[from] = at
	return at
}
