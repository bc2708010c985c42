package cascade

import (
	"fmt"

	"cascadekv/internal/fault"
	"cascadekv/internal/shmindex"
)

// sharedIndex is what other processes are shown of the names of this rank:
// internal/shmindex, docs/format.md §6. Guarded by the store's mutex.
//
// The table is kept in step by three calls: show after every change of what an
// entry tells, hide when a name is gone, and both before the mutex is given up,
// so that whoever is told of the change finds it in the table. What it says of a
// place in the arena is a hint on top of that: a block's own record there ends
// before its room is handed out again.
type sharedIndex struct {
	table  *shmindex.Table
	owners []*name  // by place
	arena  *memTier // nil when blocks lie in no file
	moves  uint64   // of arena, as of when all entries were written
	filled bool     // all names are in
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
			if s.mu.index, err = s.newIndexLocked(max(2*s.mu.names, indexNames)); err != nil {
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
func (s *Store) newIndexLocked(names int) (*sharedIndex, error) {
	x := &sharedIndex{}
	s.mu.indexes++
	o := shmindex.Options{Names: names, Number: s.mu.indexes}
	for _, m := range s.mem {
		o.Tiers = append(o.Tiers, m.stats.Name)
	}
	if s.cold != nil {
		o.Tiers = append(o.Tiers, s.coldStats.Name)
	}
	if m := s.shared(); m != nil {
		x.arena, x.moves = m, m.tier.Moves()
		o.Arena = int64(len(m.tier.Region()))
	}
	var err error
	if x.table, err = shmindex.New(o); err != nil {
		return nil, err
	}
	x.owners = make([]*name, x.table.Places())
	return x, nil
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
	sp := s.mu.spaces[ns]
	if sp == nil {
		return 0
	}
	next = min(below, len(sp.list))
	for i := 0; i < indexStep && next > 0; i++ {
		next--
		s.showLocked(sp.list[next])
	}
	return next
}

// showLocked writes what is true of a name that has a block into the index.
func (s *Store) showLocked(n *name) {
	x := s.mu.index
	if x == nil {
		return
	}
	if x.has(n) {
		x.table.Update(n.shown, s.shownOfLocked(n))
		return
	}
	place, err := x.table.Insert(shmindex.FingerprintOf(n.entry.Namespace, n.entry.Key), s.shownOfLocked(n))
	if err == nil {
		n.shown, x.owners[place] = place, n
		if !x.table.Crowded() {
			return
		}
	}
	s.growIndexLocked()
}

// has tells whether a name's place is its own.
func (x *sharedIndex) has(n *name) bool {
	return int(n.shown) < len(x.owners) && x.owners[n.shown] == n
}

// hideLocked takes a name out of the index.
func (s *Store) hideLocked(n *name) {
	if x := s.mu.index; x != nil && x.has(n) {
		x.table.Remove(n.shown)
		x.owners[n.shown] = nil
	}
}

func (s *Store) showAllLocked(b *blockState) {
	if s.mu.index == nil {
		return
	}
	for _, n := range b.names {
		s.showLocked(n)
	}
}

// shownOfLocked is what the index tells of a name.
func (s *Store) shownOfLocked(n *name) shmindex.Entry {
	b := n.block
	e := shmindex.Entry{Kind: shmindex.Here, Tier: uint16(len(s.mem)), Size: uint32(b.info.Size), CRC: b.info.CRC}
	if n.entry.Bound {
		e.Kind = shmindex.Bound
		return e
	}
	if !n.entry.Expires.IsZero() {
		e.Expires = n.entry.Expires.UnixNano()
	}
	for i := len(s.mem) - 1; i >= 0; i-- {
		if b.at[i].present {
			e.Tier = uint16(i)
		}
	}
	if x := s.mu.index; x.arena != nil && b.at[x.arena.index].present {
		if r, err := x.arena.tier.Record(b.info.ID); err == nil {
			e.Kind, e.Offset, e.Record, e.UID = shmindex.InArena, uint64(r.Offset), uint64(r.Record), r.UID
		}
	}
	return e
}

// growIndexLocked puts a larger table in the place of the one there is.
func (s *Store) growIndexLocked() {
	old := s.mu.index
	next, err := s.newIndexLocked(max(2*s.mu.names, old.table.Places()))
	if err != nil {
		s.log.Warn("the shared index ends: clients ask instead", "err", err)
		s.closeIndexLocked()
		return
	}
	old.table.Supersede()
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
