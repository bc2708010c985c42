package cascade

import (
	"fmt"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/shmindex"
)

// Touches is how one client tells what it has read by the shared index, so that
// the policies see its hits: a ring that it writes to, and that Sweep reads.
type Touches struct {
	store *Store
	ring  *shmindex.Ring
}

// Touches makes a ring. The caller must Close it.
func (s *Store) Touches() (*Touches, error) {
	ring, err := shmindex.NewRing()
	if err != nil {
		return nil, fmt.Errorf("cascade: touches: %w", err)
	}
	t := &Touches{s, ring}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.rings == nil {
		s.mu.rings = map[*Touches]struct{}{}
	}
	s.mu.rings[t] = struct{}{}
	return t, nil
}

// File is the ring's descriptor, which stays its own, and its size in bytes.
func (t *Touches) File() (fd int, size int64) { return t.ring.File() }

// Close takes in the last touches and gives the ring up. It is called once.
func (t *Touches) Close() {
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drainOneLocked(t)
	delete(s.mu.rings, t)
	t.ring.Close()
}

func (s *Store) drainTouchesLocked() {
	for t := range s.mu.rings {
		s.drainOneLocked(t)
	}
}

// drainOneLocked counts what a client read and tells the policies, as far as
// its places are of the table that is in use. Whatever it wrote, that is all it
// can do.
func (s *Store) drainOneLocked(t *Touches) {
	touches, lost := t.ring.Drain(nil)
	s.mu.stats.Hits += lost
	t.ring.Lookups(func(ns string, l shmindex.Lookups) {
		s.countLookupsLocked(ns, l.Asked, l.Found)
		s.countMissesLocked(ns, l.Missed)
	})
	var run touched
	for _, touch := range touches {
		var n *names.Name
		if x := s.mu.index; x != nil {
			n = x.touched(touch)
		}
		if n == nil {
			continue
		}
		s.countTouchLocked(n)
		if run.last != nil && n.Parent() != run.last {
			s.tellPoliciesLocked(&run)
		}
		run.add(s, n)
	}
	s.tellPoliciesLocked(&run)
}

// touched is a run of names, each the parent of the next: one request, as far as
// anybody can tell.
type touched struct {
	last   *names.Name
	chains [maxMemory][]policy.Node
	below  []policy.Node
}

func (r *touched) add(s *Store, n *names.Name) {
	r.last = n
	for t := range s.mem {
		if stateOf(n).In(t) {
			r.chains[t] = append(r.chains[t], stateOf(n).at[t].node)
		}
	}
	r.below = s.usedColdLocked(r.below, stateOf(n))
}

// tellPoliciesLocked tells the policies of a run, and begins another.
func (s *Store) tellPoliciesLocked(r *touched) {
	for t, chain := range r.chains {
		if len(chain) > 0 {
			s.mem[t].policy.Access(s.age(), chain, len(chain))
		}
		r.chains[t] = chain[:0]
	}
	if len(r.below) > 0 {
		s.mu.room.policy.Access(s.age(), r.below, len(r.below))
	}
	r.below, r.last = r.below[:0], nil
}

// countTouchLocked is count for a name that was read by the index.
func (s *Store) countTouchLocked(n *names.Name) {
	s.mu.stats.Hits++
	n.Space().Hits++
	s.countHitLocked(s.fastestLocked(stateOf(n)), stateOf(n).Info.Size)
}
