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

// ranking is a tier's order with where a block stands in it.
type ranking struct {
	*order
	node func(*entity) (policy.Node, bool)
}

// rankings returns those of all tiers that have a policy, fastest first.
func (s *Store) rankings() (all []ranking) {
	for _, m := range s.mem {
		all = append(all, ranking{&m.order, func(b *entity) (policy.Node, bool) { return b.at[m.index].node, b.at[m.index].present }})
	}
	if s.room.policy != nil {
		all = append(all, ranking{&s.room.order, func(b *entity) (policy.Node, bool) { return b.below.node, b.below.ranked }})
	}
	return all
}

// enterCold notes that b is in the cold tier, in a file of this rank.
func (s *Store) enterCold(b *entity) { s.nowIn(b, false) }

// inheritCold is enterCold for what an earlier run left: it leaves first.
func (s *Store) inheritCold(b *entity) { s.nowIn(b, true) }

func (s *Store) nowIn(b *entity, old bool) {
	b.cold = true
	s.rank(b, old)
	s.restate(b)
}

// rank tells the policy of the cold tier, if it has one, of b, which is there; old
// says that an earlier run left it.
func (s *Store) rank(b *entity, old bool) {
	if r := &s.room; r.policy != nil && !b.below.ranked {
		meta := s.meta(b)
		meta.Old = old
		b.below = standing{ranked: true, old: old, node: r.insert(s.age(), meta, b), bytes: s.takes(b)}
		r.bytes += b.below.bytes
		if old {
			r.old += b.below.bytes
		}
	}
}

// usedCold appends b's place in the cold tier's order, if it has one, to those
// of a request that uses it.
func (s *Store) usedCold(chain []policy.Node, b *entity) []policy.Node {
	if !b.below.ranked {
		return chain
	}
	if b.below.old {
		b.below.old = false
		s.room.old -= b.below.bytes
	}
	return append(chain, b.below.node)
}

// leaveCold undoes enterCold.
func (s *Store) leaveCold(b *entity) {
	b.cold = false
	if b.below.ranked {
		s.room.remove(b.below.node)
		s.room.bytes -= b.below.bytes
		if b.below.old {
			s.room.old -= b.below.bytes
		}
	}
	b.below = standing{}
	s.restate(b)
}

// takes returns the bytes that a block takes in the cold tier: fewer than it has
// where the tier encodes it.
func (s *Store) takes(b *entity) int64 {
	return s.cold.StoredSize(b.info)
}

// weigh keeps the hold on b in the cold tier in step with the reasons for one.
// It is called after every change of one of them.
func (s *Store) weigh(b *entity) {
	if b == nil || !b.below.ranked {
		return
	}
	held := b.inMemory() || b.fetch != nil || b.wanted()
	if held == b.below.held {
		return
	}
	b.below.held = held
	if held {
		s.room.policy.Hold(b.below.node)
	} else {
		s.room.policy.Release(b.below.node)
	}
}

// wanted tells whether a name of b is leased or leads on to a stored block.
func (b *entity) wanted() bool {
	return b.leading > 0 || b.leases > 0
}

// coldVictim returns the block that the cold tier gives up next, nil for none.
// Where blocks with equal bytes at several places of their chains hold each
// other in a ring, one of them is taken: see breakRing.
func (s *Store) coldVictim() *entity {
	if b := s.room.next(); b != nil {
		return b
	}
	for _, b := range s.room.nodes {
		if b != nil && len(b.names) > 1 && !b.inMemory() && b.fetch == nil && b.leases == 0 {
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
		if done, err = s.shrinkSome(); err != nil {
			s.coldDown = s.now().Add(coldRetry)
			s.noteCold(err)
		}
		if done {
			s.mergeSoon()
		}
		s.announce()
		s.mu.Unlock()
	}
}

func (s *Store) shrinkSome() (done bool, err error) {
	budget := int64(coldFill * float64(s.coldBudget()))
	for range shrinkStep {
		if s.room.policy == nil || budget == 0 || s.estate.settling || s.room.bytes <= budget {
			return true, nil
		}
		b := s.coldVictim()
		if b == nil {
			return true, s.overBudget()
		}
		if err := s.cold.Evict(b.info.ID); err != nil {
			s.noteCold(err)
		}
		s.leaveCold(b)
		s.coldStats.Evicted++
		s.vanish(b) // what is in memory is held, so this was its last copy
	}
	return false, nil
}

// overBudget says that what is held in the cold tier exceeds the budget. A shortage
// is none: the tier itself says what it takes, and what is held now is given up
// when memory lets go of it.
func (s *Store) overBudget() error {
	budget := int64(coldFill * float64(s.limits.Load().ColdBytes))
	if budget == 0 || s.room.bytes <= budget {
		return nil
	}
	return fmt.Errorf("%w; %d bytes of %d are in use", errColdFull, s.room.bytes, budget)
}
