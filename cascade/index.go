package cascade

import (
	"fmt"
	"log/slog"

	"cascadekv/cascade/names"
	"cascadekv/internal/fault"
	"cascadekv/internal/shmindex"
)

// sharedIndex is the table in which other processes look names of this rank up
// (internal/shmindex, docs/format.md §6), with the name that has each place.
//
// The table is kept in step by showLocked, after every change of what an entry
// has, and hideLocked, when a name is gone, both before the mutex is given up, so
// that whoever hears of the change finds it in the table. Where a block lies in
// the arena is a hint on top of that: a block's own record there ends before its
// room is handed out again. Guarded by the store's mutex.
type sharedIndex struct {
	table  *shmindex.Table
	owners []*names.Name // by place
	arena  *memTier      // nil when blocks lie in no file
	moves  uint64        // of arena, as of when all entries were written
	filled bool          // all names are in
}

func newSharedIndex(o shmindex.Options) (*sharedIndex, error) {
	table, err := shmindex.New(o)
	if err != nil {
		return nil, err
	}
	return &sharedIndex{table: table, owners: make([]*names.Name, table.Places())}, nil
}

// has reports whether n's place is its own.
func (x *sharedIndex) has(n *names.Name) bool {
	return int(n.Slot) < len(x.owners) && x.owners[n.Slot] == n
}

// set writes the entry of n, and reports whether the table has room for more.
func (x *sharedIndex) set(n *names.Name, e shmindex.Entry) bool {
	if x.has(n) {
		x.table.Update(n.Slot, e)
		return true
	}
	place, err := x.table.Insert(shmindex.FingerprintOf(n.Namespace(), n.Key()), e)
	if err != nil {
		return false
	}
	n.Slot, x.owners[place] = place, n
	return !x.table.Crowded()
}

// remove takes n out, if it is there.
func (x *sharedIndex) remove(n *names.Name) {
	if x.has(n) {
		x.table.Remove(n.Slot)
		x.owners[n.Slot] = nil
	}
}

// touched returns the name that a client read, as it put that into its ring: nil
// when the place is free, or one of another table.
func (x *sharedIndex) touched(touch uint64) *names.Name {
	place := uint32(touch)
	if touch>>32 != x.table.Number()&(1<<32-1) || int(place) >= len(x.owners) {
		return nil
	}
	return x.owners[place]
}

const (
	// indexNames is the least number of names that a first table has room for.
	indexNames = 16 << 10

	// indexStep is how many names are shown in one go with the mutex held.
	indexStep = 512
)

// Index opens the shared index for reading; the caller closes the descriptor.
// size is in bytes. The first call makes the index, with all names there are.
// Errors: ErrClosed, and what the kernel refuses.
func (s *Store) Index() (fd int, size int64, err error) {
	for {
		s.mu.Lock()
		if err := s.checkOpenLocked(); err != nil {
			s.mu.Unlock()
			return -1, 0, err
		}
		if s.mu.index == nil {
			if s.mu.index, err = s.newIndexLocked(max(2*s.mu.names.Len(), indexNames)); err != nil {
				s.mu.Unlock()
				return -1, 0, fmt.Errorf("cascade: shared index: %w", err)
			}
		}
		if x := s.mu.index; !x.filled {
			s.mu.Unlock()
			s.fillIndex(x)
			continue // another one may be there meanwhile
		}
		defer s.mu.Unlock()
		return s.mu.index.table.File()
	}
}

// newIndexLocked makes an empty index.
func (s *Store) newIndexLocked(room int) (*sharedIndex, error) {
	s.mu.indexes++
	o := shmindex.Options{Names: room, Number: s.mu.indexes}
	for _, m := range s.mem {
		o.Tiers = append(o.Tiers, m.stats.Name)
	}
	if s.cold != nil {
		o.Tiers = append(o.Tiers, s.coldStats.Name)
	}
	m := s.shared()
	if m != nil {
		o.Arena = int64(len(m.tier.Region()))
	}
	x, err := newSharedIndex(o)
	if err == nil && m != nil {
		x.arena, x.moves = m, m.tier.Moves()
	}
	return x, err
}

// fillIndex shows all names in x, a few at a time.
func (s *Store) fillIndex(x *sharedIndex) {
	defer fault.Guard()()
	if !s.showNames(x) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.index == x {
		x.filled = true
		s.setFinalLocked()
	}
}

// showNames is false when x was superseded meanwhile. Names that come while it
// runs are shown as they come.
func (s *Store) showNames(x *sharedIndex) bool {
	for _, ns := range s.namespaces() {
		for next := 1 << 62; next > 0; {
			s.mu.Lock()
			if s.mu.index != x {
				s.mu.Unlock()
				return false
			}
			next = s.showSomeLocked(ns, next)
			s.mu.Unlock()
		}
	}
	return true
}

// showSomeLocked shows names of a namespace below a place in its list, from
// there down as Scan does, and returns where to go on.
func (s *Store) showSomeLocked(ns string, below int) (next int) {
	sp := s.mu.names.Space(ns)
	if sp == nil {
		return 0
	}
	next = min(below, len(sp.List()))
	for i := 0; i < indexStep && next > 0; i++ {
		next--
		s.showLocked(sp.List()[next])
	}
	return next
}

// showLocked writes what is true of a name that has a block into the index.
func (s *Store) showLocked(n *names.Name) {
	if x := s.mu.index; x != nil && !x.set(n, s.shownOfLocked(n)) {
		s.growIndexLocked()
	}
}

// hideLocked takes a name out of the index.
func (s *Store) hideLocked(n *names.Name) {
	if x := s.mu.index; x != nil {
		x.remove(n)
	}
}

func (s *Store) showAllLocked(b *blockState) {
	if s.mu.index == nil {
		return
	}
	for _, n := range b.Names() {
		s.showLocked(n)
	}
}

// shownOfLocked is what the index tells of a name.
func (s *Store) shownOfLocked(n *names.Name) shmindex.Entry {
	b := stateOf(n)
	e := shmindex.Entry{Kind: shmindex.Here, Tier: uint16(len(s.mem)), Size: uint32(b.Info.Size), CRC: b.Info.CRC}
	if n.Bound() {
		e.Kind = shmindex.Bound
		return e
	}
	if !n.Expires().IsZero() {
		e.Expires = n.Expires().UnixNano()
	}
	for i := len(s.mem) - 1; i >= 0; i-- {
		if b.In(i) {
			e.Tier = uint16(i)
		}
	}
	if x := s.mu.index; x.arena != nil && b.In(x.arena.index) {
		if r, err := x.arena.tier.Record(b.Info.ID); err == nil {
			e.Kind, e.Offset, e.Record, e.UID = shmindex.InArena, uint64(r.Offset), uint64(r.Record), r.UID
		}
	}
	return e
}

// growIndexLocked puts a larger table in the place of the one there is.
func (s *Store) growIndexLocked() {
	old := s.mu.index
	next, err := s.newIndexLocked(max(2*s.mu.names.Len(), old.table.Places()))
	if err != nil {
		s.logLocked(slog.LevelWarn, "the shared index ends: clients ask instead", "err", err)
		s.closeIndexLocked()
		return
	}
	old.table.Invalidate()
	s.mu.index = next
	s.workers.Go(func() { s.fillIndex(next) })
}

// closeIndexLocked ends the index, if there is one.
func (s *Store) closeIndexLocked() {
	if s.mu.index != nil {
		s.mu.index.table.Close()
		s.mu.index = nil
	}
}

// setFinalLocked tells readers of the index whether a name that is not in it is
// nowhere.
func (s *Store) setFinalLocked() {
	if x := s.mu.index; x != nil {
		x.table.SetFinal(x.filled && !s.asksElsewhere())
	}
}

// sweepIndexLocked takes in what clients told, and has blocks that were moved
// looked up anew.
func (s *Store) sweepIndexLocked() {
	s.drainTouchesLocked()
	s.settleHoldsLocked()
	x := s.mu.index
	if x == nil || x.arena == nil || !x.filled {
		return
	}
	if moves := x.arena.tier.Moves(); moves != x.moves {
		x.moves = moves
		s.workers.Go(func() {
			defer fault.Guard()()
			s.showNames(x)
		})
	}
}
