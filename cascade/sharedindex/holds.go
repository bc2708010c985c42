package sharedindex

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cascadekv/internal/locks"
	"cascadekv/internal/shmindex"
	"cascadekv/tiers"
)

const (
	// HoldsShare is the part of the arena that the holds of one client may hold.
	HoldsShare = 64

	// AllHoldsShare is what those of all clients may hold together.
	AllHoldsShare = 8
)

// Holds is how one client has blocks of the arena stay where they are while it
// reads them there, without asking: a table that it writes to, and that the arena
// looks at before it gives room away. docs/format.md §6.4 has why that suffices.
type Holds struct {
	index *Index
	Table *shmindex.Holds
}

// Holders are the tables of all clients. The arena's tier calls it with its own
// lock held.
type Holders struct {
	mu      locks.RWMutex
	tables  []*shmindex.Holds
	allowed int64 // bytes, by all of them
}

// Holds makes holds of nothing. The caller must Close them. Their allowance is
// zero when those of other clients leave none.
// Errors: ErrNoArena.
func (ix *Index) Holds() (*Holds, error) {
	capacity, err := ix.watchHolds()
	if err != nil {
		return nil, err
	}
	ix.holders.mu.Lock()
	defer ix.holders.mu.Unlock()
	n := capacity / HoldsShare
	if ix.holders.allowed+n > capacity/AllHoldsShare {
		n = 0
	}
	table, err := shmindex.NewHolds(n)
	if err != nil {
		return nil, fmt.Errorf("cascade: holds: %w", err)
	}
	return ix.addHolds(table), nil
}

// TakeHolds goes on with holds of an earlier program of this process, whose
// descriptor is theirs from now on. They must be there before Claims.Drop.
// Errors: ErrNoArena, shmindex.ErrNoHolds.
func (ix *Index) TakeHolds(fd int) (*Holds, error) {
	capacity, err := ix.watchHolds()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	table, err := shmindex.OpenHolds(fd, capacity/HoldsShare)
	if err != nil {
		return nil, fmt.Errorf("cascade: holds: %w", err)
	}
	ix.holders.mu.Lock()
	defer ix.holders.mu.Unlock()
	return ix.addHolds(table), nil
}

// watchHolds has the arena's tier look at the holds, and returns its capacity.
func (ix *Index) watchHolds() (capacity int64, err error) {
	m := ix.state.Shared()
	if m == nil {
		return 0, ErrNoArena
	}
	m.Memory.Watch(ix.holders.has)
	return m.Memory.Usage().Capacity, nil
}

// addHolds is called with the holders' lock held.
func (ix *Index) addHolds(table *shmindex.Holds) *Holds {
	ix.holders.tables = append(ix.holders.tables, table)
	ix.holders.allowed += table.Allowance()
	return &Holds{ix, table}
}

// has reports whether a client holds the block at an offset of the arena file.
func (h *Holders) has(offset int64) bool {
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
func (h *Holds) File() (fd int, size int64) { return h.Table.File() }

// Close gives back what is held. It is called once.
func (h *Holds) Close() {
	s := h.index
	h.Table.End() // before nobody looks: the index may go on without this client's connection
	s.holders.mu.Lock()
	s.holders.tables = slices.DeleteFunc(s.holders.tables, func(t *shmindex.Holds) bool { return t == h.Table })
	s.holders.allowed -= h.Table.Allowance()
	h.Table.Close()
	s.holders.mu.Unlock()
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.settleHoldsLocked()
	s.state.WakeWaitersLocked()
}

// settleHoldsLocked frees what was evicted while it was held, and is held no
// longer.
func (ix *Index) settleHoldsLocked() {
	if ix.state.Mu.Closed {
		return
	}
	if m := ix.state.Shared(); m != nil {
		m.Memory.Settle()
	}
}

// Held returns how many blocks clients hold by themselves, and their bytes.
func (ix *Index) Held() (blocks, bytes int64) {
	ix.holders.mu.RLock()
	defer ix.holders.mu.RUnlock()
	for _, t := range ix.holders.tables {
		n, size := t.Held()
		blocks, bytes = blocks+n, bytes+size
	}
	return blocks, bytes
}

// EndHolds ends the shared index, so that clients hold nothing more, and returns
// what they do hold. The index is made anew when it is asked for.
func (ix *Index) EndHolds() []tiers.HeldRange {
	ix.state.Mu.Lock()
	ix.CloseIndexLocked()
	ix.state.Mu.Unlock()
	m := ix.state.Shared()
	if m == nil {
		return nil
	}
	return m.Memory.HeldRanges()
}
