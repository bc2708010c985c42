package locks

import "context"

// Rank is a lock's place in the order: a goroutine takes a lock only while all that
// it holds have lower ranks. The zero value is not ordered.
type Rank uint8

// The locks of a rank's store, in the order in which they are taken. Those of the
// tiers come between State and Holders.
const (
	Making     Rank = iota + 1 // of who makes a table of the shared index
	Flushing                   // the token to flush tombstones to the catalogue
	Writing                    // the token to write to the cold tier
	Publishing                 // of the publisher
	State                      // residency.State.Mu
	Holders                    // of the holds of the shared index's clients
	Events                     // of the event log
)

// String returns the name of the constant.
func (r Rank) String() string {
	return [...]string{"Unordered", "Making", "Flushing", "Writing", "Publishing", "State", "Holders", "Events"}[r]
}

// Token is a lock that a waiter can give up on.
type Token struct {
	held chan struct{}
	rank Rank
}

// NewToken returns a token of a rank that nobody has.
func NewToken(r Rank) *Token { return &Token{make(chan struct{}, 1), r} }

// Take waits for the token. The error is that of ctx.
func (t *Token) Take(ctx context.Context) error {
	before(t, t.rank)
	select {
	case t.held <- struct{}{}:
		taken(t, t.rank)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give gives the token back.
func (t *Token) Give() {
	given(t, t.rank)
	<-t.held
}
