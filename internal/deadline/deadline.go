package deadline

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

// Deadline is that of the commands of one connection. It is used by one goroutine at a
// time.
type Deadline struct {
	Within time.Duration // for one command; 0: 4.5 s
	until  time.Time     // when the command's calls of the store end; zero before the first
	oldest time.Time     // when the first command of those whose answers are owed asked the store; zero: none did
}

// Begin is called before a command is read.
func (d *Deadline) Begin() { d.until = time.Time{} }

// Sent is called when no answer is owed any more.
func (d *Deadline) Sent() { d.oldest = time.Time{} }

// Context bounds one call of the store. All calls of a command end by the same
// time, which runs from the first of them.
func (d *Deadline) Context() (context.Context, context.CancelFunc) {
	if d.until.IsZero() {
		within, now := d.Within, time.Now()
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

// Spent takes what the client needed, since began, to send or to take bytes of
// the command out of the account: it can not have waited for us meanwhile.
func (d *Deadline) Spent(began time.Time) {
	if !d.until.IsZero() {
		d.until = d.until.Add(time.Since(began))
	}
}

// Owes reports whether answers have been kept back for too long.
func (d *Deadline) Owes() bool { return !d.oldest.IsZero() && time.Since(d.oldest) > owedAtMost }
