package cascade

import "strings"

// maxAsked bounds the namespaces of a store for those that are in it only
// because somebody asked for a name there: what asks may name any.
const maxAsked = 256

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
		sp.lookups += names
		sp.found += found
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
		sp.misses += n
	}
}

// askedLocked is the namespace ns, for counting; nil where that would be one
// too many.
func (s *Store) askedLocked(ns string) *space {
	if sp := s.mu.spaces[ns]; sp != nil || len(s.mu.spaces) >= maxAsked {
		return sp
	}
	return s.spaceLocked(strings.Clone(ns)) // it may be a part of a request
}

// countPut counts a put of n.
func (n *name) countPut(s *Store) {
	s.mu.stats.Puts++
	n.space.puts++
}

// countDuplicate counts a put of bytes that were stored already.
func (n *name) countDuplicate(s *Store, alias bool) {
	s.mu.stats.Duplicates++
	if alias {
		n.space.aliases++
	}
}

// leastAlias is the least block of which other names are counted as aliases:
// what is smaller is no KV block, but what engines put beside them, which may be
// the same for all.
const leastAlias = 4 << 10

// isAlias reports whether a name of the namespace, to become one of b, finds
// another there: the same content came under another key. n is the name as it
// is, nil when there is none.
func (b *blockState) isAlias(n *name, ns string) bool {
	if b.info.Size < leastAlias || n != nil && n.block == b {
		return false
	}
	for _, other := range b.names[:min(len(b.names), maxCompared)] {
		if other.space.name == ns {
			return true
		}
	}
	return false
}

// maxCompared bounds the names of a block that are looked at: it may have very
// many, and almost always the first tells.
const maxCompared = 8
