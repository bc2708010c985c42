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

// deadline bounds the time that commands wait for the store.
type deadline struct {
	within time.Duration // see Options.AnswerWithin
	until  time.Time     // when the command's calls of the store end; zero before the first
	oldest time.Time     // when the first command of those whose answers are collected asked the store; zero: none did
}

// context bounds one call of the store. All calls of a command end by the same
// time, which runs from the first of them.
func (d *deadline) context() (context.Context, context.CancelFunc) {
	if d.until.IsZero() {
		within, now := d.within, time.Now()
		if within <= 0 {
			within = answerWithin
		}
		d.until = now.Add(within)
		if d.oldest.IsZero() {
			d.oldest = now
		}
	}
	return context.WithDeadline(context.Background(), d.until)
}

// spent takes what the client needed, since began, to send or to take bytes of
// the command out of the account: it can not have waited for us meanwhile.
func (d *deadline) spent(began time.Time) {
	if !d.until.IsZero() {
		d.until = d.until.Add(time.Since(began))
	}
}

// owes reports whether answers have been kept back for too long.
func (d *deadline) owes() bool { return !d.oldest.IsZero() && time.Since(d.oldest) > owedAtMost }
