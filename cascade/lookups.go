package cascade

import (
	"cascadekv/cascade/names"
)

// countLookup counts a look-up of one name.
func (s *Store) countLookup(ns string, found bool) {
	n := 0
	if found {
		n = 1
	}
	s.countLookups(ns, 1, n)
}

// countLookups counts a look-up of so many names, of which some were found.
func (s *Store) countLookups(ns string, names, found int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countLookupsLocked(ns, uint64(names), uint64(found))
}

func (s *Store) countLookupsLocked(ns string, names, found uint64) {
	s.mu.stats.Lookups += names
	s.mu.stats.Found += found
	if sp := s.askedLocked(ns); sp != nil && names > 0 {
		sp.Lookups += names
		sp.Found += found
	}
}

func (s *Store) countMissesLocked(ns string, n uint64) {
	if n == 0 {
		return
	}
	s.mu.stats.Misses += n
	for _, m := range s.mem {
		m.stats.Misses += n
	}
	s.remoteHits.Misses += n // shown where there are peers, and a cold tier where there is one
	s.coldStats.Misses += n
	if sp := s.askedLocked(ns); sp != nil {
		sp.Misses += n
	}
}

// askedLocked is the namespace ns, for counting; nil where that would be one
// too many: what asks may name any.
func (s *Store) askedLocked(ns string) *names.Space {
	if sp := s.mu.names.Space(ns); sp != nil || s.mu.names.SpaceCount() >= names.KeepSpaces {
		return sp
	}
	return s.mu.names.AddSpace(ns)
}

// countPutLocked counts a put of n.
func (s *Store) countPutLocked(n *names.Name) {
	s.mu.stats.Puts++
	n.Space().Puts++
}

// countDuplicateLocked counts a put of bytes that were stored already.
func (s *Store) countDuplicateLocked(n *names.Name, alias bool) {
	s.mu.stats.Duplicates++
	if alias {
		n.Space().Aliases++
	}
}

// leastAlias is the least block of which other names are counted as aliases:
// what is smaller is no KV block, but what engines put beside them, which may be
// the same for all.
const leastAlias = 4 << 10

// isAlias reports whether a name of the namespace, to become one of b, finds
// another there: the same content came under another key. n is the name as it
// is, nil when there is none.
func (b *blockState) isAlias(n *names.Name, ns string) bool {
	if b.Info.Size < leastAlias || n != nil && stateOf(n) == b {
		return false
	}
	return b.HasNameIn(ns)
}
