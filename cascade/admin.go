package cascade

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/others"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Stat describes a visible name; false when there is none. Of a name that only
// other ranks have it describes what they published.
func (s *Store) Stat(ctx context.Context, ns, key string) (NameInfo, bool) {
	info, ok := s.here.stat(ns, key)
	if ok {
		return info, ok
	}
	copies := s.others.LocatedOne(ctx, ns, key)
	if copies == nil {
		return NameInfo{}, false
	}
	st := copies[0]
	return NameInfo{
		ID: st.Info.ID, Size: st.Info.Size, Parent: st.Name.Parent, Inferred: st.Name.Inferred, Depth: st.Name.Depth, Refs: 1,
		Tiers: []string{s.others.ServedFrom(copies)}, Prefix: st.Name.Prefix, Expires: st.Name.Expires,
	}, true
}

// Delete withdraws a name from all ranks; its block goes with its last name. It
// reports whether the name was visible. Ranks that do not answer before ctx
// ends keep their copies until they do: docs/protocol.md.
func (s *Store) Delete(ctx context.Context, ns, key string) bool {
	if ns == directory.Contents || !block.IsName(ns, key) { // whose keys are no names
		return false
	}
	// What was in memory may be spilled before it is looked for in the catalogue.
	was := s.state.ContainsHere(ns, key) || s.others.Catalogued(ns, []string{key})[0] != nil
	visible, stamp := s.here.delete(ns, key)
	visible = visible || was
	if s.others.Peers == nil {
		return visible
	}
	for _, copied := range s.others.Peers.Locate(ctx, ns, []string{key})[0] {
		// Its stamp may be by a clock that is ahead, and a name that was moved has the one of its
		// record when its rank begins anew.
		visible, stamp = true, max(stamp, copied.Name.Seq+names.MovedWithin)
	}
	if err := s.others.Peers.Delete(ctx, ns, key, stamp); err != nil {
		s.warn("not all ranks have deleted", "key", key, "err", err)
	}
	return visible
}

// warn logs what went wrong with a command, one line of a kind at a time: a client
// chooses how many commands there are, and how many keys each has.
func (s *Store) warn(what string, args ...any) {
	if n, ok := s.limited.Allow(what); ok {
		s.state.Log.Warn(what, append(args, "suppressed", n)...)
	}
}

// Expire sets when a visible name ends; the zero time means never. It reports
// whether there was such a name, on whatever rank.
func (s *Store) Expire(ctx context.Context, ns, key string, at time.Time) bool {
	if ns == directory.Contents || !block.IsName(ns, key) {
		return false
	}
	if (Local{s}).Expires(ctx, ns, key, at) {
		return true
	}
	if s.others.Peers == nil {
		return false
	}
	found, err := s.others.Peers.Expire(ctx, ns, key, at)
	if err != nil {
		s.warn("no rank that has a name has set when it ends", "key", key, "err", err)
	}
	return found && err == nil
}

// Clear withdraws all names of a namespace, or of every namespace when all is
// true, on all ranks, and returns how many there were here. Ranks that do not answer before
// ctx ends keep their names until they do: docs/protocol.md.
func (s *Store) Clear(ctx context.Context, ns string, all bool) int {
	if !all && CheckNamespace(ns) != nil { // whose keys are no names
		return 0
	}
	stamp := s.here.tick()
	s.content.Cleared(ns, all, math.MaxUint64)
	total, left := s.here.clear(ns, all, math.MaxUint64)
	if err := s.others.FlushTombstones(ctx); err != nil {
		s.warn("what other ranks left is cleared later", "namespace", ns, "all", all, "err", err)
	}
	s.state.Mu.Lock()
	total += left.Withdrawn
	s.state.Mu.Unlock()
	if s.others.Peers != nil {
		if err := s.others.Peers.Clear(ctx, ns, all, stamp); err != nil {
			s.warn("not all ranks have cleared: the others do when they answer", "namespace", ns, "all", all, "err", err)
		}
	}
	return total
}

// scanStep bounds the names that a scan looks at with the mutex held.
const scanStep = 256

// Scan calls fn for about count visible names of a namespace, starting at
// cursor (0: from the start), and returns the next cursor, 0 at the end. A
// name that exists for the whole scan is seen at least once. It ends early, with
// a cursor, some names after fn returns false. fn is called without a lock, and
// may take long or call the store.
func (s *Store) Scan(ns string, cursor uint64, count int, fn func(key string) bool) uint64 {
	if others.InOwn(cursor) && !s.state.Cold.Spilled() {
		return 0 // a client made it up
	}
	if others.InOwn(cursor) {
		next, err := s.others.ScanOwn(context.Background(), ns, cursor, fn)
		if err != nil {
			s.warn("a scan ends early: the catalogue is broken", "namespace", ns, "err", err)
		}
		return next
	}
	if cursor = s.here.scanMany(ns, cursor, count, false, fn); cursor == 0 && s.state.Cold.Spilled() {
		cursor = others.FirstOwn
	}
	return cursor
}

// Len returns the number of names in a namespace that are in memory, expired ones included
// until Sweep has seen them, or in this rank's own files alone: see others.Exchange.OwnNames.
func (s *Store) Len(ns string) int {
	n := 0
	if own := s.others.OwnNames(); own != nil {
		n = own.Spaces[ns].Names
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	if sp := s.state.Mu.Names.Space(ns); sp != nil {
		n += len(sp.List())
	}
	return n
}

// Stats returns a snapshot, in which namespaces are as memory has them: see CountedStats.
func (s *Store) Stats() Stats { return statsWith(s, nil) }

// CountedStats is Stats with the names that only this rank's own files have. It may read from
// a local disk, for a tenth of a second.
func CountedStats(s *Store) Stats { return statsWith(s, s.others.OwnNames()) }

func statsWith(s *Store, own *others.OwnNames) Stats {
	var catalogue *tiers.CatalogueState
	if s.others.Catalogue != nil {
		state := s.others.Catalogue.State()
		catalogue = &state
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	st := s.state.Count.Stats
	st.Losses = s.state.Count.Losses.Counts()
	st.Catalogue = catalogue
	st.NameBytes, st.NameLimit = s.state.Mu.Names.Bytes(), s.state.Limits.Load().NameBytes
	st.Names, st.Blocks, st.Leases = s.state.Mu.Names.Len(), len(s.state.Mu.Blocks), s.state.Mu.Names.Leases()
	put := s.state.Mu.Names.Own()
	st.BytesReferenced, st.OwnReferenced, st.OwnStored = s.state.Mu.Names.Referenced(), put.Referenced, put.Stored
	for _, m := range s.state.Mem {
		m.Stats.Usage, m.Stats.Load, m.Stats.Budget = m.Memory.Usage(), m.LoadStats(), m.BudgetStats()
		m.Stats.Stats = m.Memory.Stats()
		st.Tiers = append(st.Tiers, m.Stats)
	}
	if s.others.Peers != nil {
		s.state.Remote.Stats.Load = s.state.Remote.LoadStats()
		st.Tiers = append(st.Tiers, s.state.Remote.Stats)
	}
	if s.state.Cold != nil {
		st.Orphans, st.Spilled = s.space.OrphanStatsLocked(), s.space.SpilledLocked()
		st.Tiers = append(st.Tiers, s.coldStatsNowLocked())
	}
	for _, ns := range s.state.Mu.Names.Spaces() {
		sp := s.state.Mu.Names.Space(ns)
		st.Namespaces = append(st.Namespaces, NamespaceStats{
			Name: sp.Name(), Names: len(sp.List()), BytesReferenced: sp.Referenced(), Recovered: sp.Recovered,
			Puts: sp.Puts, Aliases: sp.Aliases, Lookups: sp.Lookups, Found: sp.Found, Hits: sp.Hits, Misses: sp.Misses, Inferred: sp.Inferred,
		})
	}
	if own != nil {
		st.Namespaces = withOwn(st.Namespaces, own)
	}
	for i := range st.Namespaces {
		st.Namespaces[i].PrefillBlockUS = s.state.Requests.Prefills.PerBlock(st.Namespaces[i].Name).Microseconds()
		if l := s.layouts.Of(st.Namespaces[i].Name); !l.IsZero() {
			st.Namespaces[i].Layout = &l
		}
	}
	slices.SortFunc(st.Namespaces, func(x, y NamespaceStats) int { return cmp.Compare(x.Name, y.Name) })
	return st
}

// withOwn adds to namespaces what this rank's own files alone have of them.
func withOwn(all []NamespaceStats, own *others.OwnNames) []NamespaceStats {
	at := map[string]int{}
	for i := range all {
		at[all[i].Name] = i
	}
	for ns, sp := range own.Spaces {
		i, ok := at[ns]
		if !ok {
			i, all = len(all), append(all, NamespaceStats{Name: ns})
		}
		all[i].Spilled, all[i].SpilledBytes, all[i].Estimate = sp.Names, sp.Bytes, own.Estimate
	}
	return all
}
