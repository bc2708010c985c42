package cascade

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/internal/shmindex"
	"cascadekv/tiers"
)

const (
	// holdsShare is the part of the arena that the holds of one client may hold,
	// and allHoldsShare what those of all clients may together.
	holdsShare    = 64
	allHoldsShare = 8
)

// Holds is how one client has blocks of the arena stay where they are while it
// reads them there, without asking: a table that it writes to, and that the arena
// looks at before it gives room away. docs/format.md §6.4 has why that suffices.
type Holds struct {
	store *Store
	table *shmindex.Holds
}

// holders are the tables of all clients. The arena's tier calls it with its own
// lock held.
type holders struct {
	mu      sync.RWMutex
	tables  []*shmindex.Holds
	allowed int64 // bytes, by all of them
}

// Holds makes holds of nothing. The caller must Close them. Their allowance is
// zero when those of other clients leave none.
// Errors: ErrNoArena.
func (s *Store) Holds() (*Holds, error) {
	capacity, err := s.watchHolds()
	if err != nil {
		return nil, err
	}
	s.holders.mu.Lock()
	defer s.holders.mu.Unlock()
	n := capacity / holdsShare
	if s.holders.allowed+n > capacity/allHoldsShare {
		n = 0
	}
	table, err := shmindex.NewHolds(n)
	if err != nil {
		return nil, fmt.Errorf("cascade: holds: %w", err)
	}
	return s.addHolds(table), nil
}

// TakeHolds goes on with holds of an earlier program of this process, whose
// descriptor is theirs from now on. They must be there before DropClaims.
// Errors: ErrNoArena, shmindex.ErrNoHolds.
func (s *Store) TakeHolds(fd int) (*Holds, error) {
	capacity, err := s.watchHolds()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	table, err := shmindex.OpenHolds(fd, capacity/holdsShare)
	if err != nil {
		return nil, fmt.Errorf("cascade: holds: %w", err)
	}
	s.holders.mu.Lock()
	defer s.holders.mu.Unlock()
	return s.addHolds(table), nil
}

// watchHolds has the arena's tier look at the holds, and returns its capacity.
func (s *Store) watchHolds() (capacity int64, err error) {
	m := s.shared()
	if m == nil {
		return 0, ErrNoArena
	}
	m.tier.Watch(s.holders.has)
	return m.tier.Usage().Capacity, nil
}

// addHolds is called with the holders' lock held.
func (s *Store) addHolds(table *shmindex.Holds) *Holds {
	s.holders.tables = append(s.holders.tables, table)
	s.holders.allowed += table.Allowance()
	return &Holds{s, table}
}

// has reports whether a client holds the block at an offset of the arena file.
func (h *holders) has(offset int64) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, t := range h.tables {
		if t.Has(offset) {
			return true
		}
	}
	return false
}

// File is the holds' descriptor, which stays their own, and its size in bytes.
func (h *Holds) File() (fd int, size int64) { return h.table.File() }

// Close gives back what is held. It is called once.
func (h *Holds) Close() {
	s := h.store
	h.table.End() // before nobody looks: the index may go on without this client's connection
	s.holders.mu.Lock()
	s.holders.tables = slices.DeleteFunc(s.holders.tables, func(t *shmindex.Holds) bool { return t == h.table })
	s.holders.allowed -= h.table.Allowance()
	h.table.Close()
	s.holders.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleHoldsLocked()
	s.wakeWaitersLocked()
}

// settleHoldsLocked frees what was evicted while it was held, and is held no
// longer.
func (s *Store) settleHoldsLocked() {
	if s.mu.closed {
		return
	}
	if m := s.shared(); m != nil {
		m.tier.Settle()
	}
}

// Held returns how many blocks clients hold by themselves, and their bytes.
func (s *Store) Held() (blocks, bytes int64) {
	s.holders.mu.RLock()
	defer s.holders.mu.RUnlock()
	for _, t := range s.holders.tables {
		n, size := t.Held()
		blocks, bytes = blocks+n, bytes+size
	}
	return blocks, bytes
}

// EndHolds ends the shared index, so that clients hold nothing more, and returns
// what they do hold. The index is made anew when it is asked for.
func (s *Store) EndHolds() []tiers.Claim {
	s.mu.Lock()
	s.closeIndexLocked()
	s.mu.Unlock()
	m := s.shared()
	if m == nil {
		return nil
	}
	return m.tier.Claims()
}
