package cascade

import (
	"context"

	"cascadekv/cascade/events"
)

// Events returns up to most events from number since on, the number to go on
// with, and how many that were wanted are forgotten. since 0 asks for none: next
// is where those from now on begin. Names that are bound to another have no
// events: they are readable as that one is. An expired name is removed by Sweep.
// Nothing is kept before the first call.
func (s *Store) Events(since uint64, most int) (next, lost uint64, some []events.Event) {
	return s.state.Events.Since(since, most)
}

// AwaitEvent waits for an event after those that Events returned with next; it is
// false when ctx ends before.
func (s *Store) AwaitEvent(ctx context.Context, next uint64) bool {
	return s.state.Events.Wait(ctx, next)
}

// NextEvent is the number that the next event gets.
func (s *Store) NextEvent() uint64 { return s.state.Events.Next() }
