package cascade

import (
	"context"
	"errors"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/tiers"
)

// price is what may be given up for room in memory.
type price uint8

const (
	copyOnly price = iota // for reads: what is in the cold tier or in another one too
	anyBlock              // for puts: whatever the policy gives up next
)

// errOnlyCopy: what the policy gives up next would be lost for a read.
var errOnlyCopy = errors.New("the next victim is the only copy of its block, and the cold tier takes no writes")

// reserve returns room in memory tier m, made by eviction where needed
// (Algorithm 1, lines 4 to 11). Where there is a cold tier, no only copy of a block
// is lost for a read. Errors: ErrNoRoom, ErrTooLarge, ErrClosed.
func (s *Store) reserve(ctx context.Context, m *memTier, size int64, most price) (tiers.Slot, error) {
	if s.capacity > 0 && m.index == 0 && size > s.capacity {
		return nil, s.roomError(m, size, tiers.ErrTooLarge)
	}
	var deadline context.Context
	for {
		if s.fits(m, size) {
			slot, err := m.tier.Reserve(size)
			if err == nil {
				return slot, nil
			}
			if !errors.Is(err, tiers.ErrFull) {
				return nil, s.roomError(m, size, err)
			}
		}
		if deadline == nil {
			var cancel context.CancelFunc
			deadline, cancel = context.WithTimeout(ctx, s.limits.Load().RoomDeadline)
			defer cancel()
		}
		if err := s.evictOne(deadline, m, most); err != nil {
			return nil, s.roomError(m, size, err)
		}
	}
}

// fits applies Options.Capacity.
func (s *Store) fits(m *memTier, size int64) bool {
	return s.capacity == 0 || m.index > 0 || m.tier.Usage().Payload+size <= s.capacity
}

// evictOne makes memory tier m smaller by one block, or waits until that may
// have become possible.
func (s *Store) evictOne(ctx context.Context, m *memTier, most price) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.checkOpenLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	b := s.victimLocked(m)
	switch s.fallOfLocked(b, m) {
	case leaves:
		if most == copyOnly && s.cold != nil && s.onlyCopyLocked(b, m) {
			s.mu.Unlock()
			return errOnlyCopy
		}
		s.evictLocked(b, m)
		s.mu.Unlock()
		return nil
	case fallsToMemory:
		s.mu.Unlock()
		return s.demote(ctx, b, m, s.mem[m.index+1], most)
	case staysLeased:
		s.holdLeasesLocked(b)
	case awaitsCleaning:
		s.wakeCleanerLocked(true)
	case awaitsSync:
		s.requestSyncLocked()
	}
	return s.waitForChangeLocked(ctx) // unlocks
}

// victimLocked returns the block that m's policy gives up next, nil for none.
func (s *Store) victimLocked(m *memTier) *blockState {
	if b := m.next(); b != nil {
		return b
	}
	return s.breakRingLocked(m)
}

// breakRingLocked finds a victim when every block is held and the only holds on
// one of them are those of children: blocks with equal bytes at several places
// of their chains can hold each other in a ring.
func (s *Store) breakRingLocked(m *memTier) *blockState {
	if int64(s.mu.stats.Views) > s.kept.Load() || s.mu.batch.inFlight || s.mu.names.HeldBytes() > 0 {
		return nil // those end by themselves
	}
	return m.find(func(b *blockState) bool { return b.busy == 0 && len(b.Names()) > 1 })
}

// fall is what must happen before a victim can leave its tier.
type fall uint8

const (
	stays          fall = iota // there is no victim now
	leaves                     // nothing: its bytes are below already, or are given up
	fallsToMemory              // it is copied to the next memory tier
	awaitsCleaning             // the cleaner writes it to the cold tier
	awaitsSync                 // the cold tier makes its names durable
	staysLeased                // it would be lost, and somebody was promised it
)

// fallOfLocked decides how b, m's victim, leaves. A victim falls one tier down:
// protected blocks to the next memory tier, others to the cold one (Algorithm
// 1, lines 6 to 10).
func (s *Store) fallOfLocked(b *blockState, m *memTier) fall {
	if b == nil {
		return stays
	}
	if m != s.last() {
		below := b.In(m.index+1) || b.hasLowerCopy() && m.policy.Fall(s.metaLocked(b)) == policy.FallCold
		switch {
		case below:
			return leaves
		case m.policy.Fall(s.metaLocked(b)) == policy.FallNext || !s.coldUpLocked():
			return fallsToMemory
		}
		return awaitsCleaning
	}
	switch {
	case s.coldUpLocked() && s.mu.batch.inFlight && s.mu.batch.ahead <= 0:
		// What is being written is colder than b: wait for that instead.
		return awaitsCleaning
	case b.cold && b.linkSeq > s.mu.syncedSeq && s.coldUpLocked():
		return awaitsSync // memory has the only durable record of a name
	case b.hasLowerCopy():
		return leaves
	case s.coldUpLocked():
		return awaitsCleaning
	case s.cold != nil && b.Leased():
		return staysLeased
	}
	return leaves
}

// onlyCopyLocked reports whether b would be lost with its place in m.
func (s *Store) onlyCopyLocked(b *blockState, m *memTier) bool {
	for t := range s.mem {
		if t != m.index && b.In(t) {
			return false
		}
	}
	return !b.hasLowerCopy()
}

// evictLocked takes a victim out of m. With its last copy go its names.
func (s *Store) evictLocked(b *blockState, m *memTier) {
	m.stats.Evicted++
	if m == s.last() {
		s.mu.batch.ahead--
	}
	s.dropLocked(b, m, true)
	if !b.cold && !b.InAny() {
		if s.cold != nil && b.from == nil {
			s.mu.stats.Lost++
		}
		s.vanishLocked(b)
	}
}

// demote copies a victim of m to the next memory tier, so that the next look
// finds it there and evicts it.
func (s *Store) demote(ctx context.Context, b *blockState, m, next *memTier, most price) error {
	s.mu.Lock()
	if !b.In(m.index) || b.In(next.index) {
		s.mu.Unlock()
		return nil
	}
	v, err := s.pinInLocked(b, m, m.stats.Name)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer v.Release()
	if err := s.copyTo(ctx, v, next, most); err != nil {
		return err
	}
	s.mu.Lock()
	m.stats.Demoted++
	s.mu.Unlock()
	return nil
}

// waitPoll bounds a wait for room: leases end and the cold tier comes back
// without anybody saying so.
const waitPoll = 20 * time.Millisecond

// waitForChangeLocked waits until something was released. It is called with the
// mutex held and releases it.
func (s *Store) waitForChangeLocked(ctx context.Context) error {
	s.mu.waiting++
	changed := s.mu.changed
	s.mu.Unlock()
	timer := time.NewTimer(waitPoll)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
