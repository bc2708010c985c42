package server

import (
	"context"
	"time"
)

const (
	// answerWithin is how long a command may wait for the store, with all of its
	// calls together: redis-py gives up after 5 s, and the answer has to be there
	// by then.
	answerWithin = 4500 * time.Millisecond

	// owedAtMost is how long the answers to pipelined commands are collected, so
	// that one which waits for the store does not hold up those before it.
	owedAtMost = 100 * time.Millisecond
)

// context bounds one call of the store. All calls of a command end by the same
// time, which runs from the first of them.
func (c *conn) context() (context.Context, context.CancelFunc) {
	if c.until.IsZero() {
		within, now := c.srv.opt.AnswerWithin, time.Now()
		if within <= 0 {
			within = answerWithin
		}
		c.until = now.Add(within)
		if c.oldest.IsZero() {
			c.oldest = now
		}
	}
	return context.WithDeadline(context.Background(), c.until)
}

// spent takes what the client needed, since began, to send or to take bytes of
// the command out of the account: it can not have waited for us meanwhile.
func (c *conn) spent(began time.Time) {
	if !c.until.IsZero() {
		c.until = c.until.Add(time.Since(began))
	}
}

// owes tells whether answers have been kept back for too long.
func (c *conn) owes() bool { return !c.oldest.IsZero() && time.Since(c.oldest) > owedAtMost }
