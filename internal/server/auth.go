package server

import (
	"crypto/subtle"
	"fmt"
	"os"
	"sync"
	"time"
)

// Bounds of guessing. A source is a user of this machine or an address, see
// source; the rank's own user and root can read the password anyway.
const (
	// freeGuesses may fail before a source has to wait, first firstBackoff and
	// after each failure twice as long, up to maxBackoff.
	freeGuesses  = 3
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 10 * time.Second

	// forgetGuesses is how long after its last failure a source is forgotten.
	forgetGuesses = 10 * time.Minute

	// maxSources are remembered; all others count as one.
	maxSources = 1024

	// cutAfter is how long a connection whose password has been replaced may take
	// to end the command it is in.
	cutAfter = 500 * time.Millisecond
)

// guesses slow down those who try passwords. The zero value has seen none; it is
// safe for concurrent use.
type guesses struct {
	now func() time.Time // nil: time.Now

	mu     sync.Mutex
	of     map[string]*guess // by source
	others guess             // of sources for which there was no room
}

// guess is what is remembered of a source.
type guess struct {
	failed int
	last   time.Time // failure
	until  time.Time // no attempt is looked at
}

// try calls right, which compares a password, unless the source has to wait. It
// returns how long that is, or the failures of the source so far. Attempts are
// compared one by one, so that no more are made at the same time.
func (g *guesses) try(from string, right func() bool) (ok bool, wait time.Duration, failed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.now != nil {
		now = g.now()
	}
	at := g.of[from]
	if at == nil && len(g.of) >= maxSources {
		at = &g.others
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
	if at == nil || at == &g.others {
		at = g.enterLocked(from, now)
	}
	at.failed++
	at.last = now
	if more := at.failed - freeGuesses; more >= 0 {
		at.until = now.Add(min(maxBackoff, firstBackoff<<min(more, 10)))
	}
	return false, 0, at.failed
}

// enterLocked makes room for a source, if only that of all others.
func (g *guesses) enterLocked(from string, now time.Time) *guess {
	if g.of == nil {
		g.of = map[string]*guess{}
	}
	if len(g.of) >= maxSources {
		for who, at := range g.of {
			if now.Sub(at.last) > forgetGuesses {
				delete(g.of, who)
			}
		}
	}
	if len(g.of) >= maxSources {
		return &g.others
	}
	at := &guess{}
	g.of[from] = at
	return at
}

// errWrongPass answers a wrong password as Redis does.
const errWrongPass = "WRONGPASS invalid username-password pair or user is disabled."

// login lets the client in if the password is right, or returns what to answer.
// A client that has to wait is closed, with what it has sent after.
func (c *conn) login(user, password string) (refusal string) {
	secret := c.srv.secret.Load()
	right := func() bool {
		return user == "default" && subtle.ConstantTimeCompare([]byte(*secret), []byte(password)) == 1
	}
	from, trusted := c.source, c.uid == os.Geteuid() || c.uid == 0
	var ok bool
	var wait time.Duration
	var failed int
	if trusted {
		ok = right()
	} else {
		ok, wait, failed = c.srv.guesses.try(from, right)
	}
	if ok {
		c.letIn(secret)
		return ""
	}
	c.srv.metrics.authFailures.Add(1)
	if n, first := c.srv.limited.auth.Allow(from); first {
		c.srv.log.Warn("authentication failed", "conn", c.id, "from", from, "peer", c.wire.peer(), "failures", failed, "suppressed", n)
	}
	if wait > 0 {
		c.quit = true
		return fmt.Sprintf("ERR too many wrong passwords from %s: this one was not looked at; try again in %d ms", from, max(1, wait.Milliseconds()))
	}
	return errWrongPass
}

// letIn lets the client use commands that ask for a password, as long as the
// password is that one.
func (c *conn) letIn(secret *string) {
	c.authed = true
	c.proof.Store(secret)
}

// checkProof takes back what a password gave that is not the rank's any more.
func (c *conn) checkProof() {
	if p := c.proof.Load(); p != nil && p != c.srv.secret.Load() {
		c.authed = false
	}
}

// setSecretLocked makes a password the rank's. Connections that came in by another
// one, or when there was none, are ended: at once between two commands, and after
// cutAfter in the middle of one.
func (s *Server) setSecretLocked(password string) {
	before := s.secret.Load()
	if before != nil && *before == password {
		return
	}
	s.secret.Store(&password)
	if before == nil {
		return
	}
	var old []*conn
	for c := range s.conns {
		if p := c.proof.Load(); p != nil && p != &password {
			c.interrupt()
			old = append(old, c)
		}
	}
	s.log.Info("the password is another one; connections of the old one end", "connections", len(old))
	if len(old) == 0 {
		return
	}
	time.AfterFunc(cutAfter, func() {
		for _, c := range old {
			c.wire.interrupt(true)
		}
	})
}
