package cascade

import (
	"math"
	"time"

	"cascadekv/dht/directory"
)

const (
	// aheadFor is how long a block fetched ahead waits for its get. The
	// clients that probe get what they were told of at once or never.
	aheadFor = 2 * time.Second

	// aheadBlocks and maxAheadBytes bound what is fetched ahead: of one chain,
	// and of all together.
	aheadBlocks   = 8
	maxAheadBytes = 64 << 20
)

// ahead is a chain somebody probed: the blocks of it that other ranks have are
// fetched some way ahead of the gets. Guarded by the store's mutex.
type ahead struct {
	ids    []nameID
	copies [][]directory.Statement
	next   int
}

// fetchAhead starts to fetch the first blocks of a probed chain that other
// ranks have.
func (s *Store) fetchAhead(a *ahead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []*fetch
	for range aheadBlocks {
		s.advance(a, &fresh)
	}
	s.bringUp(fresh)
}

// advance starts the chain's next fetch, as startRemote does. The caller holds
// the mutex.
func (s *Store) advance(a *ahead, fresh *[]*fetch) {
	for a.next < len(a.ids) && s.aheadBytes < maxAheadBytes && !s.closed {
		i := a.next
		a.next++
		if fromCatalogue(a.copies[i]) && s.isVoid(&a.copies[i][0].Name) || s.remote[a.ids[i]] != nil || s.lookup(a.ids[i].ns, a.ids[i].key) != nil {
			continue
		}
		f := s.startRemote(a.ids[i], a.copies[i], false, fresh)
		f.ahead, f.reserved = a, max(a.copies[i][0].Info.Size, 1)
		s.aheadBytes += f.reserved
		return
	}
}

// takeLanded serves a get from what was fetched ahead, and fetches the chain's
// next block instead. Somebody else may want it too, so it stays for its time.
// The caller holds the mutex.
func (s *Store) takeLanded(f *fetch) *View {
	s.follow(f)
	return s.landedView(f.landed, &entity{info: f.landed.info})
}

// follow fetches the next block of the chain that f is part of, once f is
// asked for. The caller holds the mutex.
func (s *Store) follow(f *fetch) {
	if a := f.ahead; a != nil {
		f.ahead = nil
		var fresh []*fetch
		s.advance(a, &fresh)
		s.bringUp(fresh)
	}
}

// outrun forgets what was fetched, or is being fetched, of puts of a name
// stamped below before: the name has changed here since they were located.
// Those who wait get it all the same. The caller holds the mutex.
func (s *Store) outrun(id nameID, before uint64) {
	if len(s.remote) == 0 {
		return
	}
	if f := s.remote[id]; f != nil && f.copies[0].Name.Seq < before {
		s.dropLanded(f)
		delete(s.remote, id)
	}
}

// outrunAll is outrun for all names of a namespace, or for all names.
func (s *Store) outrunAll(ns string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.remote {
		if all || id.ns == ns {
			s.outrun(id, math.MaxUint64)
		}
	}
}

// outrunLanded forgets what was fetched ahead of some keys, for who wants copies
// that stay.
func (s *Store) outrunLanded(ns string, keys []string, which []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range which {
		id := nameID{ns, keys[i]}
		if f := s.remote[id]; f != nil && f.landed != nil {
			s.outrun(id, math.MaxUint64)
		}
	}
}

// dropLanded gives back what f brought ahead of its get, if it did. The caller
// holds the mutex.
func (s *Store) dropLanded(f *fetch) {
	if f.landed != nil {
		s.aheadBytes -= f.reserved
		f.landed.leave()
		f.landed = nil
	}
}

// sweepLanded gives back what was fetched ahead and not asked for in time. The
// caller holds the mutex.
func (s *Store) sweepLanded(now time.Time, all bool) {
	for id, f := range s.remote {
		if f.landed == nil || !all && now.Before(f.landed.until) {
			continue
		}
		s.dropLanded(f)
		delete(s.remote, id)
	}
}
