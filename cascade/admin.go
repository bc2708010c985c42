package cascade

import (
	"cmp"
	"context"
	"slices"
	"time"

	"cascadekv/tiers"
)

// Stat describes a visible name; false when there is none. Of a name that only
// other ranks have it tells what they published.
func (s *Store) Stat(ctx context.Context, ns, key string) (NameInfo, bool) {
	info, ok := s.statHere(ns, key)
	if ok {
		return info, ok
	}
	copies := s.locatedOne(ctx, ns, key)
	if copies == nil {
		return NameInfo{}, false
	}
	st := copies[0]
	return NameInfo{
		ID: st.Info.ID, Size: st.Info.Size, Parent: st.Name.Parent, Depth: st.Name.Depth, Refs: 1,
		Tiers: []string{s.servedFrom(copies)}, Prefix: st.Name.Prefix, Expires: st.Name.Expires,
	}, true
}

func (s *Store) statHere(ns, key string) (NameInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lookupLocked(ns, key)
	if n == nil {
		return NameInfo{}, false
	}
	b := stateOf(n)
	info := NameInfo{
		ID: b.Info.ID, Size: b.Info.Size, Parent: n.ParentKey(), Depth: n.Depth(),
		Refs: len(b.Names()), Prefix: n.Prefix(), Expires: n.Expires(), Dirty: b.dirty(),
	}
	for _, m := range s.mem {
		if b.In(m.index) {
			info.Tiers = append(info.Tiers, m.stats.Name)
		}
	}
	if b.cold {
		info.Tiers = append(info.Tiers, s.coldStats.Name)
	}
	return info, true
}

// Delete withdraws a name from all ranks; its block goes with its last name. It
// reports whether the name was visible. Ranks that do not answer before ctx
// ends keep their copies until they do: docs/protocol.md.
func (s *Store) Delete(ctx context.Context, ns, key string) bool {
	left := s.catalogued(ns, []string{key})[0] != nil
	visible, stamp := s.deleteHere(ns, key)
	visible = visible || left
	if s.peers == nil {
		return visible
	}
	visible = visible || s.peers.Locate(ctx, ns, []string{key})[0] != nil
	if err := s.peers.Delete(ctx, ns, key, stamp); err != nil {
		s.warn("not all ranks have deleted", "key", key, "err", err)
	}
	return visible
}

// warn logs what went wrong with a command, one line of a kind at a time: a client
// chooses how many commands there are, and how many keys each has.
func (s *Store) warn(what string, args ...any) {
	if n, ok := s.limited.Allow(what); ok {
		s.log.Warn(what, append(args, "suppressed", n)...)
	}
}

// deleteHere withdraws a name from this rank and returns a stamp that no
// earlier put has passed.
func (s *Store) deleteHere(ns, key string) (visible bool, stamp uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.lookupLocked(ns, key); n != nil {
		s.unbindLocked(n)
		s.wakeWaitersLocked()
		visible = true
	}
	stamp = s.tickLocked()
	s.invalidateLocked(nameID{ns, key}, stamp)
	return visible, stamp
}

// Expire sets when a visible name ends; the zero time means never. It reports
// whether there was such a name, on whatever rank.
func (s *Store) Expire(ctx context.Context, ns, key string, at time.Time) bool {
	if s.expireHere(ns, key, at) || s.raise(ctx, ns, key) && s.expireHere(ns, key, at) {
		return true
	}
	if s.peers == nil {
		return false
	}
	found, err := s.peers.Expire(ctx, ns, key, at)
	if err != nil {
		s.warn("no rank that has it knows when a name ends", "key", key, "err", err)
	}
	return found && err == nil
}

func (s *Store) expireHere(ns, key string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lookupLocked(ns, key)
	if n == nil {
		return false
	}
	s.mu.names.Expire(n, at, s.now())
	s.applyLocked()
	return true
}

// clearStep is how many names of the catalogue are withdrawn at once.
const clearStep = 1024

// Clear withdraws all names of a namespace, or of every namespace when all is
// true, on all ranks, and returns how many there were here.
func (s *Store) Clear(ctx context.Context, ns string, all bool) int {
	total, left := s.clear(ns, all)
	if err := s.flushTombstones(ctx); err != nil {
		s.warn("what other ranks left is cleared later", "namespace", ns, "all", all, "err", err)
	}
	s.mu.Lock()
	total += left.names
	s.mu.Unlock()
	if s.peers != nil {
		if err := s.peers.Clear(ctx, ns, all); err != nil {
			s.warn("not all ranks have cleared", "namespace", ns, "all", all, "err", err)
		}
	}
	return total
}

func (s *Store) namespaces() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.names.Spaces()
}

// clear is Clear on this rank; what the catalogue has is withdrawn later.
func (s *Store) clear(ns string, all bool) (total int, left *clearing) {
	spaces := []string{ns}
	if all {
		spaces = s.namespaces()
	}
	for _, space := range spaces {
		for n := sweepStep; n == sweepStep; total += n {
			n = s.clearSome(space)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return total, s.invalidateAllLocked(ns, all)
}

func (s *Store) clearSome(ns string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.mu.names.Space(ns)
	for sp != nil && n < sweepStep && len(sp.List()) > 0 {
		s.unbindLocked(sp.List()[len(sp.List())-1])
		n++
	}
	s.wakeWaitersLocked()
	return n
}

// scanStep bounds the names that a scan looks at with the mutex held.
const scanStep = 256

// Scan calls fn for about count visible names of a namespace, starting at
// cursor (0: from the start), and returns the next cursor, 0 at the end. A
// name that exists for the whole scan is seen at least once. It ends early, with
// a cursor, some names after fn returns false. fn is called without a lock, and
// may take long or call the store.
func (s *Store) Scan(ns string, cursor uint64, count int, fn func(key string) bool) uint64 {
	keys := make([]string, 0, min(count, scanStep))
	for more := true; more && count > 0; count -= scanStep {
		keys, cursor = s.scanSome(ns, cursor, min(count, scanStep), keys[:0])
		for _, key := range keys {
			more = fn(key) && more
		}
		more = more && cursor > 0
	}
	return cursor
}

// scanSome adds to keys those of at most count names that are visible.
func (s *Store) scanSome(ns string, cursor uint64, count int, keys []string) ([]string, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.mu.names.Space(ns)
	if sp == nil {
		return keys, 0
	}
	// The list is walked from its end down: a removal moves the last name to a
	// place below it, which is still to come, so no name is passed over.
	next := uint64(len(sp.List()))
	if cursor > 0 {
		next = min(next, cursor)
	}
	for ; next > 0 && count > 0; count-- {
		next--
		if n := sp.List()[next]; n.Visible(s.now) {
			keys = append(keys, n.Key())
		}
	}
	return keys, next
}

// Len returns the number of names in a namespace, expired ones included until
// Sweep has seen them.
func (s *Store) Len(ns string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.mu.names.Space(ns); sp != nil {
		return len(sp.List())
	}
	return 0
}

// Stats returns a snapshot.
func (s *Store) Stats() Stats {
	var catalogue *tiers.CatalogueState
	if s.catalogue != nil {
		state := s.catalogue.State()
		catalogue = &state
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.mu.stats
	st.Catalogue = catalogue
	st.NameBytes, st.NameLimit = s.mu.names.Bytes(), s.limits.Load().NameBytes
	st.Names, st.Blocks, st.Leases = s.mu.names.Len(), len(s.mu.blocks), s.mu.names.Leases()
	st.BytesReferenced = s.mu.names.Referenced()
	for _, m := range s.mem {
		m.stats.Usage = m.tier.Usage()
		st.Tiers = append(st.Tiers, m.stats)
	}
	if s.peers != nil {
		st.Tiers = append(st.Tiers, s.remoteHits)
	}
	if s.cold != nil {
		st.Estate = s.estateStatsLocked()
		st.Tiers = append(st.Tiers, s.coldStatsNowLocked())
	}
	for _, ns := range s.mu.names.Spaces() {
		sp := s.mu.names.Space(ns)
		st.Namespaces = append(st.Namespaces, NamespaceStats{
			Name: sp.Name(), Names: len(sp.List()), BytesReferenced: sp.Referenced(), Recovered: sp.Recovered,
			Puts: sp.Puts, Aliases: sp.Aliases, Lookups: sp.Lookups, Found: sp.Found, Hits: sp.Hits, Misses: sp.Misses,
		})
	}
	slices.SortFunc(st.Namespaces, func(x, y NamespaceStats) int { return cmp.Compare(x.Name, y.Name) })
	return st
}
