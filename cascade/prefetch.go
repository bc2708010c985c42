package cascade

import (
	"math"
	"time"

	"cascadekv/dht/directory"
)

const (
	// aheadFor is how long a block fetched ahead waits for its get. The
	// clients that probe get what they were told of at once or never.
	prefetchFor = 2 * time.Second

	// aheadBlocks and maxAheadBytes bound what is fetched ahead: of one chain,
	// and of all together.
	prefetchBlocks   = 8
	maxPrefetchBytes = 64 << 20
)

// ahead is a chain somebody probed: the blocks of it that other ranks have are
// fetched some way ahead of the gets. Guarded by the store's mutex.
type prefetch struct {
	ids    []nameID
	copies [][]directory.Statement
	next   int
}

// startPrefetch starts to fetch the first blocks of a probed chain that other
// ranks have.
func (s *Store) startPrefetch(a *prefetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []*fetch
	for range prefetchBlocks {
		s.advanceLocked(a, &fresh)
	}
	s.bringUpLocked(fresh)
}

// advanceLocked starts the chain's next fetch, as startRemoteLocked does.
func (s *Store) advanceLocked(a *prefetch, fresh *[]*fetch) {
	for a.next < len(a.ids) && s.mu.prefetchBytes < maxPrefetchBytes && !s.mu.closed {
		i := a.next
		a.next++
		if fromCatalogue(a.copies[i]) && s.isTombstonedLocked(&a.copies[i][0].Name) || s.mu.remote[a.ids[i]] != nil || s.lookupLocked(a.ids[i].ns, a.ids[i].key) != nil {
			continue
		}
		f := s.startRemoteLocked(a.ids[i], a.copies[i], false, fresh)
		f.prefetch, f.reserved = a, max(a.copies[i][0].Info.Size, 1)
		s.mu.prefetchBytes += f.reserved
		return
	}
}

// takeLandedLocked serves a get from what was fetched ahead, and fetches the
// chain's next block instead. Somebody else may want it too, so it stays for
// its time.
func (s *Store) takeLandedLocked(f *fetch) *View {
	s.continuePrefetchLocked(f)
	return s.landedViewLocked(f.landed, newBlock(f.landed.info))
}

// continuePrefetchLocked fetches the next block of the chain that f is part of,
// once f is asked for.
func (s *Store) continuePrefetchLocked(f *fetch) {
	if a := f.prefetch; a != nil {
		f.prefetch = nil
		var fresh []*fetch
		s.advanceLocked(a, &fresh)
		s.bringUpLocked(fresh)
	}
}

// invalidateFetchLocked forgets what was fetched, or is being fetched, of puts
// of a name stamped below before: the name has changed here since they were
// located. Those who wait get it all the same.
func (s *Store) invalidateFetchLocked(id nameID, before uint64) {
	if len(s.mu.remote) == 0 {
		return
	}
	if f := s.mu.remote[id]; f != nil && f.copies[0].Name.Seq < before {
		s.dropLandedLocked(f)
		delete(s.mu.remote, id)
	}
}

// invalidateFetches is invalidateFetchLocked for all names of a namespace, or for all names.
func (s *Store) invalidateFetches(ns string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.mu.remote {
		if all || id.ns == ns {
			s.invalidateFetchLocked(id, math.MaxUint64)
		}
	}
}

// invalidateLanded forgets what was fetched ahead of some keys, for who wants
// copies that stay.
func (s *Store) invalidateLanded(ns string, keys []string, which []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range which {
		id := nameID{ns, keys[i]}
		if f := s.mu.remote[id]; f != nil && f.landed != nil {
			s.invalidateFetchLocked(id, math.MaxUint64)
		}
	}
}

// dropLandedLocked gives back what f brought ahead of its get, if it did.
func (s *Store) dropLandedLocked(f *fetch) {
	if f.landed != nil {
		s.mu.prefetchBytes -= f.reserved
		f.landed.leaveLocked()
		f.landed = nil
	}
}

// sweepLandedLocked gives back what was fetched ahead and not asked for in
// time.
func (s *Store) sweepLandedLocked(now time.Time, all bool) {
	for id, f := range s.mu.remote {
		if f.landed == nil || !all && now.Before(f.landed.until) {
			continue
		}
		s.dropLandedLocked(f)
		delete(s.mu.remote, id)
	}
}
