package eviction

import (
	"errors"
	"fmt"
	"slices"

	"cascadekv/cascade/residency"
	"cascadekv/internal/losslog"
)

// maxSpaces bounds the namespaces that have names.
const maxSpaces = 1 << 16

// forgetStep bounds the names that one put gives up for room for its own.
const forgetStep = 16

// tightShare is the part of the bound, in eighths, from which the cold tier is
// ranked, so that there is a least block once the bound is met.
const tightShare = 7

// errNames comes with ErrNoRoom where the bound on names is the reason.
var errNames = errors.New("cascade: the heap for names is full and every name is in use: raise names_bytes")

// MakeRoomLocked makes room for a name within the bound on all names: it forgets
// what the cold tier's policy, or else memory's, would evict next, with its names.
// Errors: ErrNoRoom.
func (nb *NameBudget) MakeRoomLocked(ns, key string) error {
	nb.state.Mu.AssertHeld()
	if sp := nb.state.Mu.Names.Space(ns); sp != nil {
		if n := sp.Get(key); n != nil && n.Block() != nil {
			return nil // it takes the place that it has
		}
	} else if nb.state.Mu.Names.SpaceCount() >= maxSpaces {
		return fmt.Errorf("%w: there are %d namespaces", residency.ErrNoRoom, maxSpaces)
	}
	limit := nb.state.Limits.Load().NameBytes
	if limit <= 0 {
		return nil
	}
	if nb.TightLocked() && !nb.state.RanksColdLocked() {
		nb.state.WakeCleanerLocked(false)
	}
	for n := 0; n < forgetStep && nb.state.Mu.Names.Bytes() >= limit; {
		forgotten := nb.forgetSomeLocked(forgetStep)
		if forgotten == 0 {
			break
		}
		n += forgotten
	}
	if nb.state.Mu.Names.Bytes() >= limit+limit/8 {
		return fmt.Errorf("%w: %w: %d bytes of %d", residency.ErrNoRoom, errNames, nb.state.Mu.Names.Bytes(), limit)
	}
	return nil
}

// HasRoomLocked reports whether there is room for a name that others left:
// none is forgotten for it.
func (nb *NameBudget) HasRoomLocked() bool {
	nb.state.Mu.AssertHeld()
	limit := nb.state.Limits.Load().NameBytes
	return limit <= 0 || nb.state.Mu.Names.Bytes() < limit
}

// TightLocked reports whether the names are near their bound.
func (nb *NameBudget) TightLocked() bool {
	limit := nb.state.Limits.Load().NameBytes
	return nb.state.Cold != nil && limit > 0 && nb.state.Mu.Names.Bytes() >= limit/8*tightShare
}

// forgetSomeLocked forgets up to most names of the block that is least worth
// keeping, and the block with its last one. It returns how many names.
func (nb *NameBudget) forgetSomeLocked(most int) int {
	b := nb.leastWorthLocked()
	if b == nil {
		return 0
	}
	if len(b.Names()) > most {
		return nb.forgetNamesLocked(b, most)
	}
	n := len(b.Names())
	nb.state.Count.Stats.Forgotten += uint64(n)
	for t, m := range nb.state.Mem {
		if b.In(t) {
			m.Stats.Evicted++
			nb.state.DropLocked(b, m, true)
		}
	}
	if b.Cold {
		nb.state.NoteColdLocked(nb.state.Cold.Files.Evict(b.Info.ID))
		nb.state.Cold.LeaveLocked(b, true)
		nb.state.Cold.Stats.Evicted++
	}
	nb.state.Count.LostLocked(losslog.Forgotten, nil, b.Names()...)
	nb.state.VanishLocked(b)
	return n
}

// forgetNamesLocked unbinds up to most names of a block with many, those that
// nothing depends on, and returns how many.
func (nb *NameBudget) forgetNamesLocked(b *residency.Block, most int) (forgotten int) {
	for at, looked := 0, 0; at < len(b.Names()) && forgotten < most && looked < worthLooks; looked++ {
		n := b.Names()[at]
		if n.Leads() || n.Leased() {
			at++
			continue
		}
		nb.state.Count.LostLocked(losslog.Forgotten, nil, n)
		residency.EndLocked(nb.state, n)
		forgotten++
	}
	nb.state.Count.Stats.Forgotten += uint64(forgotten)
	return forgotten
}

// worthLooks bounds what is looked at in search of something to forget.
const worthLooks = 64

// leastWorthLocked returns a block that can be forgotten and leaves no hole in
// a chain, or has many names of which some can: what the cold tier gives up
// next, or memory. A leased one is the last resort. Nil for none.
func (nb *NameBudget) leastWorthLocked() *residency.Block {
	if nb.state.RanksColdLocked() {
		if b := nb.state.Cold.Next(); b != nil && b.Busy == 0 && len(b.Names()) > 0 {
			return b
		}
	}
	var leased *residency.Block
	for _, m := range slices.Backward(nb.state.Mem) {
		b := nb.leastWorthInLocked(m)
		switch {
		case b == nil:
		case !b.Leased() || len(b.Names()) > forgetStep:
			return b
		case leased == nil:
			leased = b
		}
	}
	return leased
}

// leastWorthInLocked is leastWorthLocked of a memory tier.
func (nb *NameBudget) leastWorthInLocked(m *residency.Level) (leased *residency.Block) {
	skipped := make([]*residency.Block, 0, worthLooks)
	defer func() {
		for _, b := range skipped {
			nb.state.ReleaseLocked(b, m.Index)
		}
	}()
	for len(skipped) < worthLooks {
		b := m.Next()
		switch {
		case b == nil:
			return leased
		case len(b.Names()) > forgetStep:
			return b
		case b.Leads() || b.Busy > 0 || len(b.Names()) == 0:
		case !b.Leased():
			return b
		case leased == nil:
			leased = b
		}
		nb.state.HoldLocked(b, m.Index)
		skipped = append(skipped, b)
	}
	return leased
}
