package cascade

import (
	"context"
	"errors"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// A cold tier with a catalogue finds what other ranks and earlier jobs left
// there without a block or a name in this store. What it finds is a statement
// of another rank that has only a segment, and is served as such: located, read,
// verified, kept in memory. A name that this store has itself always comes first;
// when it goes, older records of it in the catalogue are void.

// catalogueOf returns the cold tier's catalogue, nil when it has none.
func catalogueOf(cold tiers.Files) tiers.Catalogue {
	if cold == nil {
		return nil
	}
	return cold.Catalogue()
}

// HasCatalogue reports whether parts are taken in by AdoptParts or, one by one, by
// Adopt.
func (s *Store) HasCatalogue() bool { return s.catalogue != nil }

// CatalogueErr returns why what others left is not found until the next AdoptParts;
// nil when it is.
func (s *Store) CatalogueErr() error {
	if s.catalogue == nil {
		return nil
	}
	return s.catalogue.Err()
}

// AdoptParts brings the catalogue up to date with parts of other ranks: what they
// hold is a hit from then on, here and, once published, on other ranks.
// Parts of earlier calls that are not among them are not used any more.
func (s *Store) AdoptParts(ctx context.Context, parts []tiers.Part) (tiers.Taken, error) {
	if s.catalogue == nil {
		return tiers.Taken{}, errNotShared
	}
	parts = s.untaken(parts)
	if len(parts) > 0 {
		s.mu.Lock()
		s.others.Store(true)
		s.setFinalLocked()
		s.mu.Unlock()
	}
	got, err := s.catalogue.AdoptParts(ctx, parts, s.giveWay)
	s.settleEstate(parts, got.Left)
	s.mu.Lock()
	a := &s.mu.stats.Adopted
	a.Blocks, a.Names, a.Bytes = a.Blocks+got.Blocks, a.Names+got.Names, a.Bytes+got.Bytes
	alone := s.peers == nil
	s.mu.Unlock()
	if err == nil && got.Fresh {
		s.keepHeads(true)
		if !alone {
			err = s.publishFresh(ctx)
		}
	}
	return got, err
}

const (
	// freshStep is how many names are stated before their homes are waited for:
	// what is not published yet is on the heap. freshWait bounds that wait, for
	// a home may not answer.
	freshStep = 8192
	freshWait = time.Second
)

// publishFresh states the names that the catalogue has had since its last round.
func (s *Store) publishFresh(ctx context.Context) error {
	said := 0
	return s.eachCatalogued(true, nil, func(st directory.Statement) {
		s.peers.Publish(st)
		if said++; said%freshStep == 0 {
			ctx, cancel := context.WithTimeout(ctx, freshWait)
			defer cancel()
			s.peers.Settled(ctx)
		}
	})
}

// giveWay withdraws names of this store that were put before what was found of
// them elsewhere.
func (s *Store) giveWay(found []tiers.Found) {
	for len(found) > 0 {
		n := min(len(found), adoptStep)
		s.giveWaySome(found[:n])
		found = found[n:]
	}
}

func (s *Store) giveWaySome(found []tiers.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range found {
		s.mu.names.Observe(f.Name.Seq)
		n := s.mu.names.Get(f.Name.Namespace, f.Name.Key)
		switch {
		case n == nil || n.Block() == nil || n.Put() >= f.Name.Seq:
		case f.Dropped:
			s.unbindLocked(n)
		default:
			s.withdrawLocked(n, n.Seq()+1) // what was found is at least two ticks younger: see names.Graph.Put
		}
	}
	s.wakeWaitersLocked()
}

// fromCatalogue reports whether copies are a statement of the catalogue: ranks
// count their versions from 1.
func fromCatalogue(copies []directory.Statement) bool { return copies[0].Version == 0 }

// catalogued finds keys in the catalogue, in parallel to them: nil for a miss,
// and for all when there is no catalogue.
func (s *Store) catalogued(ns string, keys []string) [][]directory.Statement {
	if !s.others.Load() {
		return make([][]directory.Statement, len(keys))
	}
	return s.stated(ns, keys, s.catalogue.Find(ns, keys))
}

// stated makes statements of what the catalogue found, but for what is void.
func (s *Store) stated(ns string, keys []string, found []tiers.Found) [][]directory.Statement {
	copies := make([][]directory.Statement, len(keys))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range found {
		f := &found[i]
		if f.Info.ID.IsZero() || s.mu.tombstones.Has(&f.Name) {
			continue
		}
		if n := s.mu.names.Get(ns, keys[i]); n != nil && n.Block() != nil && n.Put() > f.Name.Seq {
			continue // what is here has expired, or is half a pair: what it replaced is no answer
		}
		copies[i] = []directory.Statement{statementOf(f)}
	}
	return copies
}

func statementOf(f *tiers.Found) directory.Statement {
	at := directory.Segment(f.Segment)
	return directory.Statement{Name: f.Name, Info: f.Info, Segment: &at}
}

// eachCatalogued calls fn with this rank's statement of every name that only the
// catalogue has and for which want is true; nil wants all.
func (s *Store) eachCatalogued(fresh bool, want func(ns, key string) bool, fn func(directory.Statement)) error {
	if s.catalogue == nil {
		return nil
	}
	return s.catalogue.Names(fresh, func(f tiers.Found) bool {
		if want != nil && !want(f.Name.Namespace, f.Name.Key) {
			return true
		}
		s.mu.Lock()
		n := s.mu.names.Get(f.Name.Namespace, f.Name.Key)
		here := n != nil && n.Block() != nil
		st := statementOf(&f)
		st.Version = s.tickLocked()
		void, closed := s.mu.tombstones.Has(&f.Name), s.mu.closed
		s.mu.Unlock()
		if !here && !void {
			fn(st)
		}
		return !closed
	})
}

// fillIn adds to statements of names that are not here what the catalogue
// has of them. The caller does not hold the mutex.
func (s *Store) fillIn(batch []directory.Statement) {
	if !s.others.Load() {
		return
	}
	for i := range batch {
		st := &batch[i]
		if st.Has() {
			continue
		}
		keys := []string{st.Name.Key}
		if copies := s.stated(st.Name.Namespace, keys, s.catalogue.Peek(st.Name.Namespace, keys))[0]; copies != nil {
			version := st.Version
			*st = copies[0]
			st.Version = version
		}
	}
}

// lostSegment takes a block that is not where the catalogue has it out of it.
func (s *Store) lostSegment(ctx context.Context, id block.ID, err error) {
	if errors.Is(err, tiers.ErrCorrupt) {
		s.mu.Lock()
		s.mu.stats.Corrupt++
		s.mu.Unlock()
	}
	// A catalogue that does not take it is broken, and begun anew.
	_ = s.catalogue.Forget(ctx, id)
}

// raise brings a name that only the catalogue has into memory.
func (s *Store) raise(ctx context.Context, ns, key string) bool {
	if s.catalogued(ns, []string{key})[0] == nil {
		return false
	}
	v, err := s.Get(ctx, ns, key)
	if err != nil {
		return false
	}
	v.Release()
	return true
}
