package cascade

import (
	"errors"
	"fmt"
)

// nameCost is about how much heap a name with a block of its own takes, in all
// tiers together, besides its key and its parent's: see TestHeapOfNames. What is
// copied of a key is counted by keyCopies.
const (
	nameCost  = 1280
	keyCopies = 3
)

// maxSpaces bounds the namespaces that have names.
const maxSpaces = 1 << 16

// forgetStep bounds the names that one put gives up for room for its own.
const forgetStep = 16

// tightShare is the part of the bound, in eighths, from which the cold tier is
// ranked, so that it is known what is least worth keeping once the bound is met.
const tightShare = 7

var errNames = errors.New("cascade: the heap for names is full and every name is in use: raise names_bytes")

// cost is how much of the bound n takes. It does not change while n has a block.
func (n *name) cost() int64 {
	return nameCost + keyCopies*int64(len(n.entry.Key)) + int64(len(n.entry.Parent))
}

// roomForName makes room for a name within the bound on all names: what the cold
// tier's policy, or else memory's, would give up next is forgotten, with its names.
// The caller holds the mutex. Errors: ErrNoRoom.
func (s *Store) roomForName(ns, key string) error {
	if sp := s.spaces[ns]; sp != nil {
		if n := sp.byKey[key]; n != nil && n.block != nil {
			return nil // it takes the place that it has
		}
	} else if len(s.spaces) >= maxSpaces {
		return fmt.Errorf("%w: there are %d namespaces", ErrNoRoom, maxSpaces)
	}
	limit := s.limits.Load().NameBytes
	if limit <= 0 {
		return nil
	}
	if s.namesTight() && s.room.policy == nil {
		s.wakeCleaner(false)
	}
	for n := 0; n < forgetStep && s.nameBytes >= limit; {
		forgotten := s.forgetSome(forgetStep)
		if forgotten == 0 {
			break
		}
		n += forgotten
	}
	if s.nameBytes >= limit+limit/8 {
		return fmt.Errorf("%w: %w: %d bytes of %d", ErrNoRoom, errNames, s.nameBytes, limit)
	}
	return nil
}

// adopts reports whether there is room for a name that others left: none is
// forgotten for it.
func (s *Store) adopts() bool {
	limit := s.limits.Load().NameBytes
	return limit <= 0 || s.nameBytes < limit
}

// namesTight reports whether the names are near their bound.
func (s *Store) namesTight() bool {
	limit := s.limits.Load().NameBytes
	return s.cold != nil && limit > 0 && s.nameBytes >= limit/8*tightShare
}

// forgetSome forgets up to most names of the block that is least worth keeping, and
// the block with its last one. It returns how many names. The caller holds the mutex.
func (s *Store) forgetSome(most int) int {
	b := s.leastWorth()
	if b == nil {
		return 0
	}
	if len(b.names) > most {
		return s.forgetNames(b, most)
	}
	n := len(b.names)
	s.stats.Forgotten += uint64(n)
	for t, m := range s.mem {
		if b.at[t].present {
			m.stats.Evicted++
			s.drop(b, m)
		}
	}
	if b.cold {
		s.noteCold(s.cold.Evict(b.info.ID))
		s.leaveCold(b)
		s.coldStats.Evicted++
	}
	s.vanish(b)
	return n
}

// forgetNames unbinds up to most names of a block with many, those that nothing
// depends on, and returns how many.
func (s *Store) forgetNames(b *entity, most int) (forgotten int) {
	for at, looked := 0, 0; at < len(b.names) && forgotten < most && looked < worthLooks; looked++ {
		n := b.names[at]
		if n.stored > 0 || len(n.leases) > 0 {
			at++
			continue
		}
		s.unbind(n)
		forgotten++
	}
	s.stats.Forgotten += uint64(forgotten)
	return forgotten
}

// worthLooks bounds what is looked at in search of something to forget.
const worthLooks = 64

// leastWorth returns a block that can be forgotten and leaves no hole in a chain, or
// has many names of which some can: what the cold tier gives up next, or memory. A
// leased one is the last resort. Nil for none.
func (s *Store) leastWorth() *entity {
	if s.room.policy != nil {
		if b := s.room.next(); b != nil && b.busy == 0 && len(b.names) > 0 {
			return b
		}
	}
	m := s.last()
	var leased *entity
	skipped := make([]*entity, 0, worthLooks)
	defer func() {
		for _, b := range skipped {
			s.release(b, m.index)
		}
	}()
	for len(skipped) < worthLooks {
		b := m.next()
		switch {
		case b == nil:
			return leased
		case len(b.names) > forgetStep:
			return b
		case b.leading > 0 || b.busy > 0 || len(b.names) == 0:
		case b.leases == 0:
			return b
		case leased == nil:
			leased = b
		}
		s.hold(b, m.index)
		skipped = append(skipped, b)
	}
	return leased
}

// leaveSpace forgets an empty namespace, and what was counted of it, where there are
// many.
func (s *Store) leaveSpace(sp *space) {
	if len(sp.byKey) == 0 && len(s.spaces) > maxAsked && s.spaces[sp.name] == sp {
		delete(s.spaces, sp.name)
	}
}

// trim leaves out of what was found, the oldest first, what the bound on names has
// no room for: it keeps the youngest names, with all that come before them in their
// chains.
func (s *Store) trim(live []claim) []claim {
	limit := s.limits.Load().NameBytes
	cost := func(c *claim) int64 {
		return nameCost + keyCopies*int64(len(c.name.Key)) + int64(len(c.name.Parent))
	}
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
	s.stats.Forgotten += uint64(len(live) - len(kept))
	s.log.Warn("not all names that were found are taken in: the heap for names is full; raise names_bytes to keep more",
		"found", len(live), "kept", len(kept), "names_bytes", limit)
	return kept
}
