package cascade

import (
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
)

// access is one request as the policies see it: where its blocks stand in the
// order of each tier, head of the chain first. Guarded by the store's mutex.
type access struct {
	chains [maxMemory][]policy.Node
	cold   []policy.Node
}

// addAccessLocked adds b to the request that accessLocked ends.
func (s *Store) addAccessLocked(b *blockState) {
	a := &s.mu.access
	for t := range s.mem {
		if b.In(t) {
			a.chains[t] = append(a.chains[t], b.at[t].node)
		}
	}
	if b.below.ranked {
		a.cold = append(a.cold, b.below.node)
	}
}

// accessLocked passes the request to the policies: found reports whether it found
// its blocks, and did not bring them.
func (s *Store) accessLocked(found bool) {
	a, now := &s.mu.access, s.age()
	for t, chain := range a.chains {
		if len(chain) > 0 {
			pass(s.mem[t].policy, now, chain, found)
			a.chains[t] = chain[:0]
		}
	}
	if len(a.cold) > 0 {
		pass(s.mu.room.policy, now, a.cold, found)
		a.cold = a.cold[:0]
	}
}

func pass(p policy.Policy, now time.Duration, chain []policy.Node, found bool) {
	hits := 0
	if found {
		hits = len(chain)
	}
	p.Access(now, chain, hits)
}

// accessed is refreshLocked for a put.
func (s *Store) accessed(stored ...*names.Name) {
	if len(stored) == 0 || stored[0] == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshLocked(stored)
}

// refreshLocked passes the policies a request that stored a chain, or a piece of
// one, head first. What comes before the piece is not touched, or each put would
// cost as much as its chain is long: those blocks can not leave before the new
// ones, and are the next to leave after them.
func (s *Store) refreshLocked(stored []*names.Name) {
	for _, n := range stored {
		if n.Block() != nil {
			s.addAccessLocked(stateOf(n))
		}
	}
	s.accessLocked(false)
}

// Touched makes the chain that another rank used as young as one used here.
func (l Local) Touched(ns string, keys []string) {
	s := l.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if n := s.lookupLocked(ns, k); n != nil {
			s.addAccessLocked(stateOf(n))
		}
	}
	s.accessLocked(true)
}
