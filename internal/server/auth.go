package server

import (
	"crypto/subtle"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// cutAfter is how long a connection whose password has been replaced may take to
// end the command it is in.
const cutAfter = 500 * time.Millisecond

// login is whether a client has authenticated.
type login struct {
	authed bool // may use commands that ask for a password, see checkProof
	bound  bool // by the limits of those who have not authenticated
	early  int  // commands it sent while bound

	// proof is the password by which authed came, as Server.secret points to it;
	// nil: by none. It is written by the connection's goroutine.
	proof atomic.Pointer[string]
}

// errWrongPass answers a wrong password as Redis does.
const errWrongPass = "WRONGPASS invalid username-password pair or user is disabled."

// authenticate lets the client in if the password is right, or returns what to answer.
// A client that has to wait is closed, with what it has sent after.
func (c *conn) authenticate(user, password string) (refusal string) {
	secret := c.srv.secret.Load()
	right := func() bool {
		return user == "default" && subtle.ConstantTimeCompare([]byte(*secret), []byte(password)) == 1
	}
	from, trusted := c.source, c.uid == os.Geteuid() || c.uid == 0
	var ok bool
	var wait time.Duration
	failed := 1
	if trusted { // and not counted
		ok = right()
	} else {
		ok, wait, failed = c.srv.guesses.Try(from, right)
	}
	if ok {
		c.letIn(secret)
		return ""
	}
	c.srv.counters.authFailures.Add(1)
	if n, first := c.srv.limited.auth.Allow(from); first {
		c.srv.log.Warn("authentication failed", "conn", c.id, "from", from, "peer", c.sock.Peer(), "failures", failed, "suppressed", n)
	}
	if wait > 0 {
		c.quit = true
		return fmt.Sprintf("ERR too many wrong passwords from %s: this one was not looked at; try again in %d ms", from, max(1, wait.Milliseconds()))
	}
	return errWrongPass
}

// letIn lets the client use commands that ask for a password, as long as the
// password is that one.
func (c *login) letIn(secret *string) {
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
			c.sock.Shutdown(true)
		}
	})
}
