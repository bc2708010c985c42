package cascade

import (
	"context"
	"errors"
	"slices"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// tombstones records which catalogue entries this rank has invalidated. Guarded by
// the store's mutex.
type tombstones struct {
	names map[nameID]tombstone
	queue []nameID    // of names that the catalogue has not withdrawn yet
	clear []*clearing // of whole namespaces
	wake  chan struct{}
	turn  chan struct{} // holds one while somebody has the catalogue withdraw them
}

// void says that puts of a name stamped below are void.
type tombstone struct {
	below uint64
	done  time.Time // when the catalogue had withdrawn them; zero before
}

// clearing says that puts stamped below are void, of a namespace or of all.
type clearing struct {
	ns    string
	all   bool
	below uint64
	names int // that were withdrawn therefore so far; guarded by the store's mutex
}

const (
	// voidFor is how long a name is remembered after the catalogue has withdrawn
	// it: whoever found it before has asked for its block by then.
	tombstoneFor = 10 * time.Second

	// voidStep is how many names the catalogue withdraws at once.
	tombstoneStep = 512

	// clearSync is after how many steps a clearing has the tier sync.
	clearSync = 32

	// voidRetry is when to try again what the catalogue, or the tier under it,
	// refused.
	tombstoneRetry = 2 * time.Second
)

func newTombstones() tombstones {
	return tombstones{names: map[nameID]tombstone{}, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// isTombstonedLocked reports whether a name of the catalogue does not count.
func (s *Store) isTombstonedLocked(n *block.Name) bool {
	if v := s.tombstones.names[nameID{n.Namespace, n.Key}]; n.Seq < v.below {
		return true
	}
	for _, c := range s.tombstones.clear {
		if n.Seq < c.below && (c.all || c.ns == n.Namespace) {
			return true
		}
	}
	return false
}

// invalidateLocked voids what the catalogue has of puts of a name stamped
// below.
func (s *Store) invalidateLocked(id nameID, below uint64) {
	if !s.others.Load() {
		return
	}
	s.invalidateFetchLocked(id, below)
	v, known := s.tombstones.names[id]
	if known && below <= v.below {
		return
	}
	if !known || !v.done.IsZero() {
		s.tombstones.queue = append(s.tombstones.queue, id)
	}
	s.tombstones.names[id] = tombstone{below: below}
	s.wakeTombstonesLocked()
}

// invalidateAllLocked voids all that the catalogue has of a namespace, or of
// all.
func (s *Store) invalidateAllLocked(ns string, all bool) *clearing {
	c := &clearing{ns: ns, all: all, below: s.tickLocked()}
	if s.others.Load() {
		s.tombstones.clear = append(s.tombstones.clear, c)
		s.wakeTombstonesLocked()
	}
	return c
}

func (s *Store) wakeTombstonesLocked() {
	select {
	case s.tombstones.wake <- struct{}{}:
	default:
	}
}

// flushTombstonesInBackground has the catalogue withdraw what is void.
func (s *Store) flushTombstonesInBackground(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.tombstones.wake:
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
	if err := takeSlot(ctx, s.tombstones.turn); err != nil {
		return err
	}
	defer func() { <-s.tombstones.turn }()
	for more := true; more && err == nil; {
		more, err = s.flushNames(ctx)
	}
	for err == nil {
		s.mu.Lock()
		if len(s.tombstones.clear) == 0 {
			s.mu.Unlock()
			break
		}
		c := s.tombstones.clear[0]
		s.mu.Unlock()
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
	for _, id := range s.tombstones.queue {
		s.noteLinkLocked(s.cold.Unlink(block.ID{}, block.Name{Namespace: id.ns, Key: id.key, Seq: s.tombstones.names[id].below - 1}))
	}
}

// flushNames withdraws some single names and reports whether there are more.
func (s *Store) flushNames(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	ids := s.tombstones.queue[:min(len(s.tombstones.queue), tombstoneStep)]
	names := make([]block.Name, len(ids))
	for i, id := range ids {
		names[i] = block.Name{Namespace: id.ns, Key: id.key, Seq: s.tombstones.names[id].below}
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return false, nil
	}
	there, err := s.catalogue.Withdraw(ctx, names...)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	var tell []directory.Statement
	for i, id := range ids {
		if there[i] {
			s.noteLinkLocked(nil)
		}
		tell = append(tell, s.stateLocked(id.ns, id.key)) // it may have been stated when a part was this rank's
	}
	s.tombstones.queue = s.tombstones.queue[len(ids):]
	for i, id := range ids {
		if v := s.tombstones.names[id]; v.below == names[i].Seq {
			s.tombstones.names[id] = tombstone{below: v.below, done: s.now()}
		} else {
			s.tombstones.queue = append(s.tombstones.queue, id) // again meanwhile
		}
	}
	more, peers := len(s.tombstones.queue) > 0, s.peers
	s.mu.Unlock()
	if peers != nil {
		s.fillIn(tell)
		peers.Publish(tell...)
	}
	return more, nil
}

// flushClearing withdraws the names of a namespace, or all.
func (s *Store) flushClearing(ctx context.Context, c *clearing) error {
	var some []block.Name
	var failed error
	steps := 0
	walked := s.catalogue.Names(false, func(f tiers.Found) bool {
		if f.Name.Seq < c.below && (c.all || c.ns == f.Name.Namespace) {
			some = append(some, block.Name{Namespace: f.Name.Namespace, Key: f.Name.Key, Seq: c.below})
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
	s.tombstones.clear = slices.DeleteFunc(s.tombstones.clear, func(other *clearing) bool { return other == c })
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
func (s *Store) withdrawCleared(ctx context.Context, c *clearing, some []block.Name) error {
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
			c.names++
		}
	}
	return nil
}

// sweepTombstonesLocked forgets names that the catalogue has withdrawn some
// time ago.
func (s *Store) sweepTombstonesLocked(now time.Time) {
	for id, v := range s.tombstones.names {
		if !v.done.IsZero() && now.Sub(v.done) >= tombstoneFor {
			delete(s.tombstones.names, id)
		}
	}
}
