package cascade

import (
	"context"
	"errors"
	"math"
	"time"

	"cascadekv/cascade/tombstones"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

const (
	// tombstoneStep is how many names the catalogue withdraws at once.
	tombstoneStep = 512

	// clearSync is after how many steps a clearing has the tier sync.
	clearSync = 32

	// tombstoneRetry is when to try again what the catalogue, or the tier under it,
	// refused.
	tombstoneRetry = 2 * time.Second
)

// invalidateLocked invalidates what the catalogue has of puts of a name stamped
// below.
func (s *Store) invalidateLocked(id nameID, below uint64) {
	if !s.others.Load() {
		return
	}
	s.invalidateFetchLocked(id, below)
	if s.mu.tombstones.Add(id.ns, id.key, below) {
		wake(s.flush)
	}
}

// invalidateAllLocked invalidates all that the catalogue has of a namespace, or of
// all.
func (s *Store) invalidateAllLocked(ns string, all bool) *tombstones.Clearing {
	c := tombstones.NewClearing(ns, all, s.tickLocked())
	if s.others.Load() {
		s.mu.tombstones.AddClearing(c)
		wake(s.flush)
	}
	return c
}

// flushTombstonesInBackground has the catalogue withdraw what is void.
func (s *Store) flushTombstonesInBackground(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.flush:
		case <-again:
		}
		again = nil
		if err := s.flushTombstones(ctx); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.noteColdLocked(err)
			s.mu.Unlock()
			again = time.After(tombstoneRetry)
		}
	}
}

// flushTombstones has the catalogue withdraw what is void now.
func (s *Store) flushTombstones(ctx context.Context) (err error) {
	if s.catalogue == nil {
		return nil
	}
	if err := takeSlot(ctx, s.flushing); err != nil {
		return err
	}
	defer func() { <-s.flushing }()
	for more := true; more && err == nil; {
		more, err = s.flushNames(ctx)
	}
	for err == nil {
		s.mu.Lock()
		c := s.mu.tombstones.Clearing()
		s.mu.Unlock()
		if c == nil {
			break
		}
		err = s.flushClearing(ctx, c)
	}
	return err
}

// flushLastTombstones is flushTombstones before the tiers are closed. What the
// catalogue does not take is recorded all the same, so that it is void when the
// catalogue is begun anew.
func (s *Store) flushLastTombstones(ctx context.Context) {
	err := s.flushTombstones(ctx)
	if err == nil {
		return
	}
	s.log.Warn("what is void of what other ranks left is not withdrawn in the catalogue", "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.mu.tombstones.Queued(math.MaxInt) {
		n.Seq--
		s.noteLinkLocked(s.cold.Unlink(block.ID{}, n))
	}
}

// flushNames withdraws some single names and reports whether there are more.
func (s *Store) flushNames(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	withdrawn := s.mu.tombstones.Queued(tombstoneStep)
	s.mu.Unlock()
	if len(withdrawn) == 0 {
		return false, nil
	}
	there, err := s.catalogue.Withdraw(ctx, withdrawn...)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	var states []directory.Statement
	for i, n := range withdrawn {
		if there[i] {
			s.noteLinkLocked(nil)
		}
		states = append(states, s.stateLocked(n.Namespace, n.Key)) // it may have been stated when a part was this rank's
	}
	more, peers := s.mu.tombstones.Flushed(withdrawn, s.now()), s.peers
	s.mu.Unlock()
	if peers != nil {
		s.fillIn(states)
		peers.Publish(states...)
	}
	return more, nil
}

// flushClearing withdraws the names of a namespace, or all.
func (s *Store) flushClearing(ctx context.Context, c *tombstones.Clearing) error {
	var some []block.Name
	var failed error
	steps := 0
	walked := s.catalogue.Names(false, func(f tiers.Found) bool {
		if c.Has(&f.Name) {
			some = append(some, block.Name{Namespace: f.Name.Namespace, Key: f.Name.Key, Seq: c.Below()})
		}
		if len(some) == clearStep {
			failed = s.withdrawCleared(ctx, c, some)
			some = some[:0]
			// The tier keeps a bounded number of withdrawals in mind.
			if steps++; steps%clearSync == 0 && failed == nil {
				failed = s.syncInTurn(ctx)
			}
		}
		return failed == nil
	})
	if err := errors.Join(failed, walked); err != nil {
		return err
	}
	if err := s.withdrawCleared(ctx, c, some); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.tombstones.Cleared(c)
	return nil
}

// syncInTurn is syncCold for those without the cleaning token.
func (s *Store) syncInTurn(ctx context.Context) error {
	if err := takeSlot(ctx, s.cleaning); err != nil {
		return err
	}
	defer func() { <-s.cleaning }()
	return s.syncCold(ctx)
}

// withdrawCleared withdraws some names of a clearing.
func (s *Store) withdrawCleared(ctx context.Context, c *tombstones.Clearing, some []block.Name) error {
	if len(some) == 0 {
		return nil
	}
	there, err := s.catalogue.Withdraw(ctx, some...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLinkLocked(nil)
	for _, was := range there {
		if was {
			c.Withdrawn++
		}
	}
	return nil
}
