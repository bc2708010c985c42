package cascade

import (
	"time"

	"cascadekv/dht/directory"
)

const (
	// aheadFor is how long a block fetched ahead waits for its get. The
	// clients that probe get what they were told of at once or never.
	aheadFor = 2 * time.Second

	// aheadBlocks and aheadBytes bound what is fetched ahead: of one chain,
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
	for range aheadBlocks {
		s.advance(a)
	}
}

// advance starts the chain's next fetch. The caller holds the mutex.
func (s *Store) advance(a *ahead) {
	for a.next < len(a.ids) && s.aheadBytes < maxAheadBytes && !s.closed {
		i := a.next
		a.next++
		if s.remote[a.ids[i]] != nil || s.lookup(a.ids[i].ns, a.ids[i].key) != nil {
			continue
		}
		f := s.joinRemote(a.ids[i], a.copies[i])
		f.ahead, f.reserved = a, max(a.copies[i][0].Info.Size, 1)
		s.aheadBytes += f.reserved
		return
	}
}

// takeLanded serves a get from what was fetched ahead, and fetches the chain's
// next block instead. Somebody else may want it too, so it stays for its time.
// The caller holds the mutex.
func (s *Store) takeLanded(f *fetch) *View {
	if f.landed == nil {
		return nil
	}
	s.follow(f)
	return s.landedView(f.landed)
}

// follow fetches the next block of the chain that f is part of, once f is
// asked for. The caller holds the mutex.
func (s *Store) follow(f *fetch) {
	if a := f.ahead; a != nil {
		f.ahead = nil
		s.advance(a)
	}
}

// sweepLanded gives back what was fetched ahead and not asked for in time. The
// caller holds the mutex.
func (s *Store) sweepLanded(now time.Time, all bool) {
	for id, f := range s.remote {
		if f.landed == nil || !all && now.Before(f.landed.until) {
			continue
		}
		delete(s.remote, id)
		s.aheadBytes -= f.reserved
		f.landed.leave()
	}
}
