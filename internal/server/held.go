package server

import (
	"strings"
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

	views, stages, pins atomic.Int64 // how many there are, for Held
}

// newBudget is the budget of a store's arena: nothing where there is none.
func newBudget(st *cascade.Store) *budget {
	a, _ := st.Arena()
	return &budget{limit: a.Capacity / heldShare}
}

// heldSize is what a block of size bytes counts.
func heldSize(size int64) int64 { return max(arena.RoundSize(size), heldLeast) }

// take counts a block in, or is false when there is no room for it.
func (b *budget) take(size int64) bool {
	if size > b.limit { // rounding what is much larger may overflow
		return false
	}
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

// held is what one connection holds of the arena, and of memory as pins. It
// belongs to the connection's goroutine.
type held struct {
	budget *budget
	last   int64 // number given last, of views and stages
	views  map[int64]*cascade.View
	stages map[int64]*cascade.Stage
	pins   map[pinned]*cascade.View
}

// pinned is what a pin is known by.
type pinned struct{ ns, key string }

// addView keeps a view that the budget was taken for, and returns its number.
func (h *held) addView(v *cascade.View) int64 {
	v.Keep()
	h.last++
	h.putView(h.last, v)
	return h.last
}

func (h *held) putView(number int64, v *cascade.View) {
	setIn(&h.views, number, v)
	h.budget.views.Add(1)
}

// dropView ends a view and tells whether there was one.
func (h *held) dropView(number int64) bool {
	v := h.views[number]
	if v == nil {
		return false
	}
	delete(h.views, number)
	h.end(v)
	h.budget.views.Add(-1)
	return true
}

func (h *held) end(v *cascade.View) {
	h.budget.giveBack(v.Size())
	v.Release()
}

// addStage keeps a stage that the budget was taken for, and returns its number.
func (h *held) addStage(st *cascade.Stage) int64 {
	st.Keep()
	h.last++
	h.putStage(h.last, st)
	return h.last
}

func (h *held) putStage(number int64, st *cascade.Stage) {
	setIn(&h.stages, number, st)
	h.budget.stages.Add(1)
}

// takeStage hands a stage over to who ends it, or returns nil.
func (h *held) takeStage(number int64) *cascade.Stage {
	st := h.stages[number]
	if st != nil {
		delete(h.stages, number)
		h.budget.stages.Add(-1)
		h.budget.giveBack(int64(len(st.Bytes())))
	}
	return st
}

// dropStage ends a stage unused and tells whether there was one.
func (h *held) dropStage(number int64) bool {
	st := h.takeStage(number)
	if st != nil {
		st.Abort()
	}
	return st != nil
}

// pin keeps a view, nil for a miss, as the key's pin, and tells whether the key
// is pinned now. A pin of what the key named before ends.
func (h *held) pin(ns, key string, v *cascade.View) bool {
	k := pinned{ns, key}
	old := h.pins[k]
	if old != nil && v != nil && old.SameBlock(v) {
		v.Release()
		return true
	}
	if old != nil {
		h.unpin(ns, key)
	}
	if v == nil {
		return false
	}
	if !h.budget.take(v.Size()) {
		v.Release()
		return false
	}
	v.Keep()
	h.putPin(pinned{ns, strings.Clone(key)}, v) // key may be part of many
	return true
}

func (h *held) putPin(k pinned, v *cascade.View) {
	setIn(&h.pins, k, v)
	h.budget.pins.Add(1)
}

// unpin ends a pin and tells whether there was one.
func (h *held) unpin(ns, key string) bool {
	k := pinned{ns, key}
	v := h.pins[k]
	if v == nil {
		return false
	}
	delete(h.pins, k)
	h.end(v)
	h.budget.pins.Add(-1)
	return true
}

// dropAll gives everything back.
func (h *held) dropAll() {
	for n := range h.views {
		h.dropView(n)
	}
	for n := range h.stages {
		h.dropStage(n)
	}
	for k := range h.pins {
		h.unpin(k.ns, k.key)
	}
}

// setIn sets an entry of a map that is made when it is first needed: most
// connections hold nothing.
func setIn[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
