package holdings

import (
	"strings"
	"sync/atomic"

	"cascadekv/cascade"
	"cascadekv/internal/admission"
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

// Budget bounds what clients hold of the arena. Its methods are safe for
// concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64

	views, stages, pins atomic.Int64 // how many there are
}

// NewBudget returns the Budget of an arena of so many bytes.
func NewBudget(arena int64) *Budget { return &Budget{limit: arena / heldShare} }

// Limit returns how many bytes all clients may hold.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns how many bytes, and how many views, pins and stages there are.
func (b *Budget) Used() (bytes, views, pins, stages int64) {
	return b.used.Load(), b.views.Load(), b.pins.Load(), b.stages.Load()
}

// Size is what a block of size bytes counts.
func Size(size int64) int64 { return max(arena.RoundSize(size), heldLeast) }

// Take counts a block in, or is false when there is no room for it.
func (b *Budget) Take(size int64) bool {
	if size > b.limit { // rounding what is much larger may overflow
		return false
	}
	return admission.AddWithin(&b.used, Size(size), b.limit)
}

// GiveBack undoes Take.
func (b *Budget) GiveBack(size int64) { b.used.Add(-Size(size)) }

// Client is what one client holds of the arena, and of memory as pins. It is used by
// one goroutine.
type Client struct {
	Budget *Budget

	last   int64 // number given last, of views and stages
	views  map[int64]*cascade.View
	stages map[int64]*cascade.Stage
	pins   map[pinned]*cascade.View
}

// pinned is what a pin is known by.
type pinned struct{ ns, key string }

// AddView keeps a view that the Budget was taken for, and returns its number.
func (h *Client) AddView(v *cascade.View) int64 {
	v.Keep()
	h.last++
	h.putView(h.last, v)
	return h.last
}

func (h *Client) putView(number int64, v *cascade.View) {
	setIn(&h.views, number, v)
	h.Budget.views.Add(1)
}

// DropView ends a view and reports whether there was one.
func (h *Client) DropView(number int64) bool {
	v := h.views[number]
	if v == nil {
		return false
	}
	delete(h.views, number)
	h.end(v)
	h.Budget.views.Add(-1)
	return true
}

func (h *Client) end(v *cascade.View) {
	h.Budget.GiveBack(v.Size())
	v.Release()
}

// AddStage keeps a stage that the Budget was taken for, and returns its number.
func (h *Client) AddStage(st *cascade.Stage) int64 {
	st.Keep()
	h.last++
	h.putStage(h.last, st)
	return h.last
}

func (h *Client) putStage(number int64, st *cascade.Stage) {
	setIn(&h.stages, number, st)
	h.Budget.stages.Add(1)
}

// TakeStage hands a stage over to who ends it, or returns nil.
func (h *Client) TakeStage(number int64) *cascade.Stage {
	st := h.stages[number]
	if st != nil {
		delete(h.stages, number)
		h.Budget.stages.Add(-1)
		h.Budget.GiveBack(int64(len(st.Bytes())))
	}
	return st
}

// DropStage ends a stage unused and reports whether there was one.
func (h *Client) DropStage(number int64) bool {
	st := h.TakeStage(number)
	if st != nil {
		st.Abort()
	}
	return st != nil
}

// Pin keeps a view, nil for a miss, as the key's pin, and reports whether the key
// is pinned now. A pin of what the key named before ends.
func (h *Client) Pin(ns, key string, v *cascade.View) bool {
	k := pinned{ns, key}
	old := h.pins[k]
	if old != nil && v != nil && old.SameBlock(v) {
		v.Release()
		return true
	}
	if old != nil {
		h.Unpin(ns, key)
	}
	if v == nil {
		return false
	}
	if !h.Budget.Take(v.Size()) {
		v.Release()
		return false
	}
	v.Keep()
	h.putPin(pinned{ns, strings.Clone(key)}, v) // key may be part of many
	return true
}

func (h *Client) putPin(k pinned, v *cascade.View) {
	setIn(&h.pins, k, v)
	h.Budget.pins.Add(1)
}

// Unpin ends a pin and reports whether there was one.
func (h *Client) Unpin(ns, key string) bool {
	k := pinned{ns, key}
	v := h.pins[k]
	if v == nil {
		return false
	}
	delete(h.pins, k)
	h.end(v)
	h.Budget.pins.Add(-1)
	return true
}

// DropAll gives everything back.
func (h *Client) DropAll() {
	for n := range h.views {
		h.DropView(n)
	}
	for n := range h.stages {
		h.DropStage(n)
	}
	for k := range h.pins {
		h.Unpin(k.ns, k.key)
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
