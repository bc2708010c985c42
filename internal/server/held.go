package server

import (
	"sync/atomic"

	"cascadekv/cascade"
	"cascadekv/internal/arena"
)

const (
	// heldShare is the part of the arena that views, pins and stages of all
	// connections may hold together.
	heldShare = 4

	// heldLeast is what each of them counts at least, in bytes: more than what
	// the rank itself remembers of it.
	heldLeast = 1 << 10
)

// budget bounds what clients hold of the arena. Its methods are safe for
// concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
}

func newBudget(st *cascade.Store) *budget {
	a, _ := st.Arena()
	return &budget{limit: a.Capacity / heldShare}
}

// heldSize is what a block of size bytes counts.
func heldSize(size int64) int64 { return max(arena.RoundSize(size), heldLeast) }

// take counts a block in, or is false when there is no room for it.
func (b *budget) take(size int64) bool {
	n := heldSize(size)
	for {
		used := b.used.Load()
		if used+n > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (b *budget) giveBack(size int64) { b.used.Add(-heldSize(size)) }

// held is what one connection holds of the arena. It belongs to the
// connection's goroutine.
type held struct {
	budget *budget
	last   int64 // number given last
	views  map[int64]*cascade.View
}

// addView keeps a view that the budget was taken for, and returns its number.
func (h *held) addView(v *cascade.View) int64 {
	v.Keep()
	if h.views == nil { // most connections hold nothing
		h.views = map[int64]*cascade.View{}
	}
	h.last++
	h.views[h.last] = v
	return h.last
}

// dropView ends a view and tells whether there was one.
func (h *held) dropView(number int64) bool {
	v := h.views[number]
	if v == nil {
		return false
	}
	delete(h.views, number)
	h.end(v)
	return true
}

func (h *held) end(v *cascade.View) {
	h.budget.giveBack(v.Size())
	v.Release()
}

// dropAll gives everything back.
func (h *held) dropAll() {
	for n := range h.views {
		h.dropView(n)
	}
}
