package sharedindex

import (
	"errors"
	"fmt"

	"cascadekv/cascade/names"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/internal/fault"
	"cascadekv/internal/locks"
	"cascadekv/internal/shmindex"
)

// Index keeps the table in which clients look names up, and what they do with what
// they find: what they read by themselves, and what they hold meanwhile. It is safe
// for concurrent use.
type Index struct {
	state   *residency.State
	others  *others.Exchange
	holders Holders
	making  locks.Mutex // who makes a table

	guarded struct { // by State.Mu
		table  *Table // nil: nobody has asked for it, or a larger one is being made
		least  int    // names that the next one has room for
		tables uint64 // made so far
		rings  []*Touches
		next   int // of the rings: the one before that with which CatchUpLocked begins
	}
}

// New returns the index of a rank; there is no table before the first Open.
func New(s *residency.State, x *others.Exchange) *Index {
	ix := &Index{state: s, others: x}
	ix.guarded.least = IndexNames
	ix.making.SetRank(locks.Making)
	ix.holders.mu.SetRank(locks.Holders)
	s.Requests.CatchUpLocked = ix.CatchUpLocked
	return ix
}

// Table is the table in which other processes look names of this rank up
// (internal/shmindex, docs/format.md §6), with the name that has each place.
//
// The table is kept in step by ShowLocked, after every change of what an entry
// has, and HideLocked, when a name is gone, both before the mutex is given up, so
// that whoever hears of the change finds it in the table. Where a block lies in
// the arena is a hint on top of that: a block's own record there ends before its
// slot is handed out again. Guarded by State.Mu.
type Table struct {
	Table  *shmindex.Table
	Owners []*names.Name    // by place
	arena  *residency.Level // nil when blocks lie in no file
	moves  uint64           // of arena, as of when all entries were written
	Filled bool             // all names are in
}

// NewTable returns an empty table.
func NewTable(o shmindex.Options) (*Table, error) {
	table, err := shmindex.New(o)
	if err != nil {
		return nil, err
	}
	return &Table{Table: table, Owners: make([]*names.Name, table.Places())}, nil
}

// TableLocked is the table that is in use, nil for none. State.Mu is held.
func (ix *Index) TableLocked() *Table { return ix.guarded.table }

// has reports whether n's place is its own.
func (x *Table) has(n *names.Name) bool {
	return int(n.Slot) < len(x.Owners) && x.Owners[n.Slot] == n
}

// Set writes the entry of n, and reports whether the table has room for more.
func (x *Table) Set(n *names.Name, e shmindex.Entry) bool {
	if x.has(n) {
		x.Table.Update(n.Slot, e)
		return true
	}
	place, err := x.Table.Insert(shmindex.FingerprintOf(n.Namespace(), n.Key()), e)
	if err != nil {
		return false
	}
	n.Slot, x.Owners[place] = place, n
	return !x.Table.Crowded()
}

// Remove takes n out, if it is there.
func (x *Table) Remove(n *names.Name) {
	if x.has(n) {
		x.Table.Remove(n.Slot)
		x.Owners[n.Slot] = nil
	}
}

// Touched returns the name that a client read, as it put that into its ring: nil
// when the place is free, or one of another table.
func (x *Table) Touched(touch uint64) *names.Name {
	place := uint32(touch)
	if touch>>32 != x.Table.Number()&(1<<32-1) || int(place) >= len(x.Owners) {
		return nil
	}
	return x.Owners[place]
}

const (
	// IndexNames is the least number of names that a first table has room for.
	IndexNames = 16 << 10

	// indexStep is how many names are shown in one go with the mutex held.
	indexStep = 512
)

// Open opens the shared index for reading; the caller closes the descriptor.
// size is in bytes. The first call makes the index, with all names there are.
// Errors: ErrClosed, and what the kernel refuses.
func (ix *Index) Open() (fd int, size int64, err error) {
	for {
		x, err := ix.table()
		if err != nil {
			return -1, 0, err
		}
		ix.state.Mu.Lock()
		if x.Filled && x == ix.guarded.table {
			defer ix.state.Mu.Unlock()
			return x.Table.File()
		}
		ix.state.Mu.Unlock()
		ix.populate(x) // another one may be there meanwhile
	}
}

// table returns the table, and makes one if there is none. Memory is taken for it
// without the mutex.
func (ix *Index) table() (*Table, error) {
	ix.making.Lock()
	defer ix.making.Unlock()
	ix.state.Mu.Lock()
	x, err := ix.guarded.table, ix.state.CheckOpenLocked()
	if x != nil || err != nil {
		ix.state.Mu.Unlock()
		return x, err
	}
	ix.guarded.tables++
	number, room := ix.guarded.tables, max(2*ix.state.Mu.Names.Len(), ix.guarded.least)
	ix.state.Mu.Unlock()
	if x, err = ix.newTable(number, room); err != nil {
		return nil, fmt.Errorf("cascade: shared index: %w", err)
	}
	ix.state.Mu.Lock()
	defer ix.state.Mu.Unlock()
	if err := ix.state.CheckOpenLocked(); err != nil {
		x.Table.Close()
		return nil, err
	}
	ix.guarded.table = x
	return x, nil
}

// newTable makes an empty table.
func (ix *Index) newTable(number uint64, room int) (*Table, error) {
	o := shmindex.Options{Names: room, Number: number}
	for _, m := range ix.state.Levels {
		o.Tiers = append(o.Tiers, m.Stats.Name)
	}
	m := ix.state.Shared()
	if m != nil {
		o.Arena = int64(len(m.Memory.Region()))
	}
	x, err := NewTable(o)
	if err == nil {
		x.Table.SetLoads(loadsOf(ix.state)...)
	}
	if err == nil && m != nil {
		x.arena, x.moves = m, m.Memory.Moves()
	}
	return x, err
}

// loadsOf returns how long loads from each level take: all is copied from the host level in the end, which
// the first one stands for.
func loadsOf(s *residency.State) []shmindex.Load {
	loads := make([]shmindex.Load, len(s.Levels))
	of := func(m *residency.Level) shmindex.Load {
		l := m.Line()
		return shmindex.Load{Latency: l.Latency, PerByte: l.PerByte}
	}
	if loads[0] = of(s.Host()); s.Cold != nil {
		loads[s.Cold.Index] = of(s.Cold)
	}
	if d := s.Deep(); d != nil {
		loads[d.Index] = of(d)
	}
	return loads
}

// populate shows all names in x, a few at a time.
func (ix *Index) populate(x *Table) {
	defer fault.Guard()()
	if !ix.showNames(x) {
		return
	}
	ix.state.Mu.Lock()
	defer ix.state.Mu.Unlock()
	if ix.guarded.table == x {
		x.Filled = true
		ix.SetFinalLocked()
	}
}

// showNames shows all names in x; false when another table took x's place. Names that come while it
// runs are shown as they come.
func (ix *Index) showNames(x *Table) bool {
	for _, ns := range ix.state.Namespaces() {
		for next := 1 << 62; next > 0; {
			ix.state.Mu.Lock()
			if ix.guarded.table != x {
				ix.state.Mu.Unlock()
				return false
			}
			next = ix.showSomeLocked(ns, next)
			ix.state.Mu.Unlock()
		}
	}
	return true
}

// showSomeLocked shows names of a namespace below a place in its list, from
// there down as Scan does, and returns where to go on.
func (ix *Index) showSomeLocked(ns string, below int) (next int) {
	sp := ix.state.Mu.Names.Space(ns)
	if sp == nil {
		return 0
	}
	next = min(below, len(sp.List()))
	for i := 0; i < indexStep && next > 0; i++ {
		next--
		ix.ShowLocked(sp.List()[next])
	}
	return next
}

// ShowLocked writes the entry of a name that has a block.
func (ix *Index) ShowLocked(n *names.Name) {
	ix.state.Mu.AssertHeld()
	if x := ix.guarded.table; x != nil && !x.Set(n, ix.ShownOfLocked(n)) {
		ix.growLocked()
	}
}

// HideLocked takes a name out of the index.
func (ix *Index) HideLocked(n *names.Name) {
	ix.state.Mu.AssertHeld()
	if x := ix.guarded.table; x != nil {
		x.Remove(n)
	}
}

// ShowAllLocked is ShowLocked for all names of a block.
func (ix *Index) ShowAllLocked(b *residency.Block) {
	if ix.guarded.table == nil {
		return
	}
	for _, n := range b.Names() {
		ix.ShowLocked(n)
	}
}

// ShownOfLocked returns the index entry of a name.
func (ix *Index) ShownOfLocked(n *names.Name) shmindex.Entry {
	b := residency.BlockOf(n)
	e := shmindex.Entry{Kind: shmindex.Here, Tier: uint16(len(ix.state.Mem)), Size: uint32(b.Info.Size), CRC: b.Info.CRC}
	if n.Bound() {
		e.Kind = shmindex.Bound
		return e
	}
	if !n.Expires().IsZero() {
		e.Expires = n.Expires().UnixNano()
	}
	for i := len(ix.state.Mem) - 1; i >= 0; i-- {
		if b.In(i) {
			e.Tier = uint16(i)
		}
	}
	if x := ix.guarded.table; x.arena != nil && b.In(x.arena.Index) {
		if r, err := x.arena.Memory.Record(b.Info.ID); err == nil {
			e.Kind, e.Offset, e.Record, e.UID = shmindex.InArena, uint64(r.Offset), uint64(r.Record), r.UID
		}
	}
	return e
}

// growLocked ends the table, which is full, and has a larger one made.
func (ix *Index) growLocked() {
	old := ix.guarded.table.Table
	old.Invalidate()
	ix.guarded.table, ix.guarded.least = nil, old.Places()
	ix.state.Workers.Go(func() {
		x, err := ix.table()
		switch {
		case err == nil:
			ix.populate(x)
		case !errors.Is(err, residency.ErrClosed):
			ix.state.Log.Warn("the shared index ends: clients ask instead", "err", err)
		}
	})
}

// CloseIndexLocked ends the index, if there is one.
func (ix *Index) CloseIndexLocked() {
	ix.state.Mu.AssertHeld()
	if ix.guarded.table != nil {
		ix.guarded.table.Table.Close()
		ix.guarded.table = nil
	}
}

// SetFinalLocked shows readers of the index whether a name that is not in it is
// nowhere.
func (ix *Index) SetFinalLocked() {
	ix.state.Mu.AssertHeld()
	if x := ix.guarded.table; x != nil {
		x.Table.SetFinal(x.Filled && !ix.others.AsksElsewhere())
	}
}

// SweepIndexLocked takes in what clients report, and has blocks that were moved
// looked up anew.
func (ix *Index) SweepIndexLocked() {
	ix.state.Mu.AssertHeld()
	ix.drainTouchesLocked()
	ix.settleHoldsLocked()
	x := ix.guarded.table
	if x == nil {
		return
	}
	x.Table.SetLoads(loadsOf(ix.state)...)
	if x.arena == nil || !x.Filled {
		return
	}
	if moves := x.arena.Memory.Moves(); moves != x.moves {
		x.moves = moves
		ix.state.Workers.Go(func() {
			defer fault.Guard()()
			ix.showNames(x)
		})
	}
}
