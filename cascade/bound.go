package cascade

import (
	"errors"
	"fmt"
	"log/slog"

	"cascadekv/cascade/names"
)

// maxSpaces bounds the namespaces that have names.
const maxSpaces = 1 << 16

// forgetStep bounds the names that one put gives up for room for its own.
const forgetStep = 16

// tightShare is the part of the bound, in eighths, from which the cold tier is
// ranked, so that there is a least block once the bound is met.
const tightShare = 7

var errNames = errors.New("cascade: the heap for names is full and every name is in use: raise names_bytes")

// roomForNameLocked makes room for a name within the bound on all names: what
// the cold tier's policy, or else memory's, would give up next is forgotten,
// with its names. Errors: ErrNoRoom.
func (s *Store) roomForNameLocked(ns, key string) error {
	if sp := s.mu.names.Space(ns); sp != nil {
		if n := sp.Get(key); n != nil && n.Block() != nil {
			return nil // it takes the place that it has
		}
	} else if s.mu.names.SpaceCount() >= maxSpaces {
		return fmt.Errorf("%w: there are %d namespaces", ErrNoRoom, maxSpaces)
	}
	limit := s.limits.Load().NameBytes
	if limit <= 0 {
		return nil
	}
	if s.namesTightLocked() && s.mu.room.policy == nil {
		s.wakeCleanerLocked(false)
	}
	for n := 0; n < forgetStep && s.mu.names.Bytes() >= limit; {
		forgotten := s.forgetSomeLocked(forgetStep)
		if forgotten == 0 {
			break
		}
		n += forgotten
	}
	if s.mu.names.Bytes() >= limit+limit/8 {
		return fmt.Errorf("%w: %w: %d bytes of %d", ErrNoRoom, errNames, s.mu.names.Bytes(), limit)
	}
	return nil
}

// hasNameRoomLocked reports whether there is room for a name that others left:
// none is forgotten for it.
func (s *Store) hasNameRoomLocked() bool {
	limit := s.limits.Load().NameBytes
	return limit <= 0 || s.mu.names.Bytes() < limit
}

// namesTightLocked reports whether the names are near their bound.
func (s *Store) namesTightLocked() bool {
	limit := s.limits.Load().NameBytes
	return s.cold != nil && limit > 0 && s.mu.names.Bytes() >= limit/8*tightShare
}

// forgetSomeLocked forgets up to most names of the block that is least worth
// keeping, and the block with its last one. It returns how many names.
func (s *Store) forgetSomeLocked(most int) int {
	b := s.leastWorthLocked()
	if b == nil {
		return 0
	}
	if len(b.Names()) > most {
		return s.forgetNamesLocked(b, most)
	}
	n := len(b.Names())
	s.mu.stats.Forgotten += uint64(n)
	for t, m := range s.mem {
		if b.In(t) {
			m.stats.Evicted++
			s.dropLocked(b, m, true)
		}
	}
	if b.cold {
		s.noteColdLocked(s.cold.Evict(b.Info.ID))
		s.leaveColdLocked(b, true)
		s.coldStats.Evicted++
	}
	s.vanishLocked(b)
	return n
}

// forgetNamesLocked unbinds up to most names of a block with many, those that
// nothing depends on, and returns how many.
func (s *Store) forgetNamesLocked(b *blockState, most int) (forgotten int) {
	for at, looked := 0, 0; at < len(b.Names()) && forgotten < most && looked < worthLooks; looked++ {
		n := b.Names()[at]
		if n.Leads() || n.Leased() {
			at++
			continue
		}
		s.unbindLocked(n)
		forgotten++
	}
	s.mu.stats.Forgotten += uint64(forgotten)
	return forgotten
}

// worthLooks bounds what is looked at in search of something to forget.
const worthLooks = 64

// leastWorthLocked returns a block that can be forgotten and leaves no hole in
// a chain, or has many names of which some can: what the cold tier gives up
// next, or memory. A leased one is the last resort. Nil for none.
func (s *Store) leastWorthLocked() *blockState {
	if s.mu.room.policy != nil {
		if b := s.mu.room.next(); b != nil && b.busy == 0 && len(b.Names()) > 0 {
			return b
		}
	}
	m := s.last()
	var leased *blockState
	skipped := make([]*blockState, 0, worthLooks)
	defer func() {
		for _, b := range skipped {
			s.releaseLocked(b, m.index)
		}
	}()
	for len(skipped) < worthLooks {
		b := m.next()
		switch {
		case b == nil:
			return leased
		case len(b.Names()) > forgetStep:
			return b
		case b.Leads() || b.busy > 0 || len(b.Names()) == 0:
		case !b.Leased():
			return b
		case leased == nil:
			leased = b
		}
		s.holdLocked(b, m.index)
		skipped = append(skipped, b)
	}
	return leased
}

// trimLocked leaves out of what was found, the oldest first, what the bound on
// names has no room for: it keeps the youngest names, with all that come before
// them in their chains.
func (s *Store) trimLocked(live []claim) []claim {
	limit := s.limits.Load().NameBytes
	cost := func(c *claim) int64 { return names.Cost(c.name.Key, c.name.Parent) }
	total := int64(0)
	for i := range live {
		total += cost(&live[i])
	}
	if limit <= 0 || total <= limit {
		return live
	}
	at := make(map[nameID]int, len(live))
	for i := range live {
		at[nameID{live[i].name.Namespace, live[i].name.Key}] = i
	}
	keep := make([]bool, len(live))
	total = 0
	for i := len(live) - 1; i >= 0 && total < limit; i-- {
		for j, ok := i, true; ok && !keep[j]; j, ok = at[nameID{live[j].name.Namespace, live[j].name.Parent}] {
			keep[j] = true
			total += cost(&live[j])
		}
	}
	kept := make([]claim, 0, len(live))
	for i, c := range live {
		if keep[i] {
			kept = append(kept, c)
		}
	}
	s.mu.stats.Forgotten += uint64(len(live) - len(kept))
	s.logLocked(slog.LevelWarn, "not all names that were found are taken in: the heap for names is full; raise names_bytes to keep more",
		"found", len(live), "kept", len(kept), "names_bytes", limit)
	return kept
}
