package cascade

import (
	"errors"
	"fmt"

	"cascadekv/cascade/policy"
)

// coldRoom ranks the blocks that this rank keeps in a cold tier with a budget, or
// in one that was full once. Blocks that lie in other ranks' files are not among
// them: those ranks decide.
//
// A block is held there while it is also in memory, so that memory never loses
// the copy below it; while a name below one of its own has a block, wherever
// that is, so that no chain gets a hole; while it is leased; and while it is
// read.
type coldRoom struct {
	order // its policy is nil without a budget, before the first shortage: everything stays
	bytes int64
	old   int64 // of these, bytes of blocks that earlier runs left and this one did not use

	ranking bool // the policy is new, and has not been given all blocks yet
}

// standing is an entity's place in the cold tier.
type standing struct {
	foreign bool // in another rank's file
	ranked  bool
	held    bool
	old     bool // left by an earlier run, and not used since
	node    policy.Node
	bytes   int64 // that it takes there
}

// enterColdLocked notes that b is in the cold tier, in a file of this rank.
func (s *Store) enterColdLocked(b *blockState) { s.nowInLocked(b, false) }

// inheritColdLocked is enterColdLocked for what an earlier run left: it leaves first.
func (s *Store) inheritColdLocked(b *blockState) { s.nowInLocked(b, true) }

func (s *Store) nowInLocked(b *blockState, old bool) {
	b.cold = true
	s.rankLocked(b, old)
	s.placementChangedLocked(b)
}

// rankLocked adds b, which is in the cold tier, to that tier's policy, if it has
// one; old: an earlier run left it.
func (s *Store) rankLocked(b *blockState, old bool) {
	if r := &s.mu.room; r.policy != nil && !b.below.ranked {
		meta := s.metaLocked(b)
		meta.Old = old
		b.below = standing{ranked: true, old: old, node: r.insert(s.age(), meta, b), bytes: s.takesLocked(b)}
		r.bytes += b.below.bytes
		if old {
			r.old += b.below.bytes
		}
	}
}

// usedColdLocked records that b is used, if an earlier run left it.
func (s *Store) usedColdLocked(b *blockState) {
	if b.below.old {
		b.below.old = false
		s.mu.room.old -= b.below.bytes
	}
}

// leaveColdLocked undoes enterColdLocked.
func (s *Store) leaveColdLocked(b *blockState, evicted bool) {
	b.cold = false
	if b.below.ranked {
		s.mu.room.remove(b.below.node, evicted)
		s.mu.room.bytes -= b.below.bytes
		if b.below.old {
			s.mu.room.old -= b.below.bytes
		}
	}
	b.below = standing{}
	s.placementChangedLocked(b)
}

// takesLocked returns the bytes that a block takes in the cold tier: fewer than
// it has where the tier encodes it.
func (s *Store) takesLocked(b *blockState) int64 {
	return s.cold.StoredSize(b.Info)
}

// syncColdHoldLocked keeps the hold on b in the cold tier in step with the
// reasons for one. It is called after every change of one of them.
func (s *Store) syncColdHoldLocked(b *blockState) {
	if b == nil || !b.below.ranked {
		return
	}
	held := b.InAny() || b.fetch != nil || b.Needed()
	if held == b.below.held {
		return
	}
	b.below.held = held
	if held {
		s.mu.room.policy.Hold(b.below.node)
	} else {
		s.mu.room.policy.Release(b.below.node)
	}
}

// coldVictimLocked returns the block that the cold tier gives up next, nil for
// none. Where blocks with equal bytes at several places of their chains hold
// each other in a ring, one of them is taken: see breakRing.
func (s *Store) coldVictimLocked() *blockState {
	if b := s.mu.room.next(); b != nil {
		return b
	}
	for _, b := range s.mu.room.nodes {
		if b != nil && len(b.Names()) > 1 && !b.InAny() && b.fetch == nil && !b.Leased() {
			return b
		}
	}
	return nil
}

// coldFill is how much of the budget live blocks may take: what is dead takes
// the rest until it is merged away.
const coldFill = 0.8

// shrinkStep bounds the blocks that one turn of shrinking gives up, for it
// holds the mutex.
const shrinkStep = 1000

var errColdFull = errors.New("cascade: the budget of the cold tier is smaller than what memory keeps of it: raise lustre.budget")

// shrinkCold gives up blocks of the cold tier until it keeps its budget. Where
// everything is held the tier takes no writes for a while.
func (s *Store) shrinkCold() {
	s.rankCold()
	for done := false; !done; {
		s.mu.Lock()
		var err error
		if done, err = s.shrinkSomeLocked(); err != nil {
			s.mu.coldDown = s.now().Add(coldRetry)
			s.noteColdLocked(err)
		}
		if done {
			s.mergeSoonLocked()
		}
		s.wakeWaitersLocked()
		s.mu.Unlock()
	}
}

func (s *Store) shrinkSomeLocked() (done bool, err error) {
	budget := int64(coldFill * float64(s.coldBudgetLocked()))
	for range shrinkStep {
		if s.mu.room.policy == nil || budget == 0 || s.mu.estate.settling || s.mu.room.bytes <= budget {
			return true, nil
		}
		b := s.coldVictimLocked()
		if b == nil {
			return true, s.overBudgetLocked()
		}
		if err := s.cold.Evict(b.Info.ID); err != nil {
			s.noteColdLocked(err)
		}
		s.leaveColdLocked(b, true)
		s.coldStats.Evicted++
		s.vanishLocked(b) // what is in memory is held, so this was its last copy
	}
	return false, nil
}

// overBudgetLocked returns an error where what is held in the cold tier exceeds the budget.
// A shortage is none: the tier decides what it takes, and what is held now
// is given up when memory lets go of it.
func (s *Store) overBudgetLocked() error {
	budget := int64(coldFill * float64(s.limits.Load().ColdBytes))
	if budget == 0 || s.mu.room.bytes <= budget {
		return nil
	}
	return fmt.Errorf("%w; %d bytes of %d are in use", errColdFull, s.mu.room.bytes, budget)
}
