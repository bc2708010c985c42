package arena

import (
	"cmp"
	"fmt"
	"slices"
)

// Extent is a range that Alloc handed out in an earlier process: its offset
// and the size asked for.
type Extent struct{ Offset, Size int64 }

// WalkRecords calls fn for each cell of each Records slab that tags describe
// within the first size bytes, used or not. Damaged tags are passed over.
func WalkRecords(tags []byte, size int64, fn func(off, cell int64)) {
	walkSlabs(tags, size, func(first int64, class int, z Zone) {
		if z != Records {
			return
		}
		cell := cellSize(class)
		for i := range slabPages(cell) * Page / cell {
			fn(first*Page+i*cell, cell)
		}
	})
}

// HasRecords reports whether tags describe any Records slab. An allocator keeps
// none that is empty.
func HasRecords(tags []byte) bool {
	return slices.ContainsFunc(tags, func(t byte) bool { return t&recordTag != 0 })
}

// walkSlabs calls fn for each well-formed slab. Slabs can not overlap: a tag
// inside another slab is damage, and skipped with it.
func walkSlabs(tags []byte, size int64, fn func(first int64, class int, z Zone)) {
	pages := min(size/Page, int64(len(tags)))
	for p := int64(0); p < pages; {
		class, z := int(tags[p]&^recordTag)-1, Payload
		if tags[p]&recordTag != 0 {
			z = Records
		}
		if class < 0 || class >= numClasses || p+slabPages(cellSize(class)) > pages {
			p++
			continue
		}
		fn(p, class, z)
		p += slabPages(cellSize(class))
	}
}

// Adopt makes an empty allocator continue an earlier one: the space is size
// bytes, tags describe its slabs, and used lists what is handed out. Slabs with
// nothing in use are given back; what is lent stays so. The returned indices
// name the extents that can not be (outside the space, misaligned, overlapping
// one before them): they are not counted as used.
func (a *Allocator) Adopt(size int64, used []Extent) (rejected []int) {
	walkSlabs(a.tags, size, func(first int64, class int, z Zone) { a.addSlab(first, class, z) })
	a.pages = size / Page

	order := make([]int, len(used))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(used[x].Offset, used[y].Offset) })

	taken := make([]Extent, 0, len(used)+len(a.slabs)) // runs and slabs in use, in pages
	for _, i := range order {
		e := used[i]
		switch n := RoundSize(e.Size); {
		case n == 0:
		case n <= MaxCell:
			if !a.adoptCell(e.Offset, n) {
				rejected = append(rejected, i)
			}
		case e.Offset < 0 || e.Offset%Page != 0 || e.Offset+n > a.Size():
			rejected = append(rejected, i)
		default:
			taken = append(taken, Extent{e.Offset / Page, n / Page})
			a.used += n
		}
	}
	a.dropEmptySlabs()
	return append(rejected, a.freeGaps(taken, used)...)
}

func (a *Allocator) adoptCell(off, n int64) bool {
	if off < 0 || off+n > a.Size() {
		return false
	}
	s := a.slabOf(off, n)
	if s == nil || s.cell != n || (off-s.first*Page)%n != 0 {
		return false
	}
	i := (off - s.first*Page) / n
	if i >= s.cells() || !s.isFree(i) {
		return false
	}
	s.bits[i/64] &^= 1 << (i % 64)
	s.free--
	a.used += n
	if s.free == 0 {
		a.unlink(s)
	}
	return true
}

func (a *Allocator) dropEmptySlabs() {
	for first, s := range a.slabs {
		if s.free == s.cells() {
			a.unlink(s)
			delete(a.slabs, first)
		}
	}
	for p := range min(a.pages, int64(len(a.tags))) {
		if a.slabs[p] == nil && a.tags[p] != lentTag {
			a.tags[p] = 0
		}
	}
}

// freeGaps turns all that neither runs nor slabs take into free runs, and
// returns the indices in used of the runs that overlap something.
func (a *Allocator) freeGaps(taken, used []Extent) (rejected []int) {
	for _, s := range a.slabs {
		taken = append(taken, Extent{s.first, -slabPages(s.cell)}) // negative: a slab, which wins
	}
	slices.SortStableFunc(taken, func(x, y Extent) int {
		return cmp.Or(cmp.Compare(x.Offset, y.Offset), cmp.Compare(x.Size, y.Size))
	})
	var end int64
	for k, t := range taken {
		n := max(t.Size, -t.Size)
		overlaps := t.Offset < end
		if !overlaps && t.Size > 0 && k+1 < len(taken) && taken[k+1].Size < 0 {
			overlaps = taken[k+1].Offset < t.Offset+n
		}
		if overlaps && t.Size > 0 {
			a.used -= n * Page
			rejected = append(rejected, slices.IndexFunc(used, func(e Extent) bool {
				return e.Offset == t.Offset*Page && RoundSize(e.Size) == n*Page
			}))
			continue
		}
		if t.Offset > end {
			a.runs.put(end, t.Offset-end)
		}
		end = max(end, t.Offset+n)
	}
	a.runs.put(end, a.pages-end)
	return rejected
}

// Object is something in a run of its own, as Compact sees it.
type Object struct {
	Extent
	Movable bool
}

// Compact makes one run of RoundSize(size) bytes, larger than MaxCell, by
// moving objects out of a window where that is cheapest, and returns its
// offset as Alloc does. objects must list everything larger than MaxCell that
// is handed out. move(i, to) must copy objects[i] to offset to; its old place
// is taken over. The error is ErrNoSpace when no window can be cleared.
func (a *Allocator) Compact(size int64, objects []Object, move func(i int, to int64)) (int64, error) {
	n := RoundSize(size) / Page
	if n*Page <= MaxCell || a.runs.pages < n {
		return 0, ErrNoSpace
	}
	first, inside, ok := a.cheapestWindow(n, objects)
	if !ok {
		return 0, ErrNoSpace
	}
	// The window's free gaps are taken first, so that nothing moves into it.
	var gaps []Extent
	p := first
	for _, i := range inside {
		gaps = append(gaps, Extent{p, objects[i].Offset/Page - p})
		p = (objects[i].Offset + RoundSize(objects[i].Size)) / Page
	}
	gaps = append(gaps, Extent{p, max(0, first+n-p)})
	for _, g := range gaps {
		if g.Size > 0 && !a.runs.takeAt(g.Offset, g.Size) {
			return 0, fmt.Errorf("arena: objects do not match the space at page %d: %w", g.Offset, ErrNoSpace)
		}
	}
	return a.clearWindow(first, n, inside, gaps, objects, move)
}

// clearWindow moves the objects inside out. When one can not be placed, all
// that was won so far goes back to the free runs.
func (a *Allocator) clearWindow(first, n int64, inside []int, gaps []Extent, objects []Object, move func(i int, to int64)) (int64, error) {
	old := make([]Extent, len(inside)) // pages; move may change objects
	for k, i := range inside {
		old[k] = Extent{objects[i].Offset / Page, RoundSize(objects[i].Size) / Page}
	}
	for k, i := range inside {
		to, err := a.runs.take(old[k].Size)
		if err != nil {
			for _, e := range append(gaps, old[:k]...) {
				a.runs.put(e.Offset, e.Size)
			}
			return 0, ErrNoSpace
		}
		move(i, to*Page)
	}
	// The last object may reach past the window: what it leaves there is free.
	if k := len(old); k > 0 {
		if end := old[k-1].Offset + old[k-1].Size; end > first+n {
			a.runs.put(first+n, end-first-n)
		}
	}
	a.used += n * Page
	return first * Page, nil
}

// cheapestWindow finds the start of n pages that hold only free runs and
// movable objects, with the fewest object bytes, and the objects inside in
// order. A window starts where a free run or an object starts.
func (a *Allocator) cheapestWindow(n int64, objects []Object) (first int64, inside []int, ok bool) {
	type piece struct {
		first, pages int64
		object       int // index, or -1: free
	}
	pieces := make([]piece, 0, len(objects)+len(a.runs.byStart))
	for i, o := range objects {
		if o.Movable {
			pieces = append(pieces, piece{o.Offset / Page, RoundSize(o.Size) / Page, i})
		}
	}
	for _, f := range a.runs.byStart {
		pieces = append(pieces, piece{f.first, f.pages, -1})
	}
	slices.SortFunc(pieces, func(x, y piece) int { return cmp.Compare(x.first, y.first) })

	best := int64(-1)
	lo, bestLo, bestHi := 0, 0, 0
	var moved int64
	for hi, p := range pieces {
		if hi > lo && pieces[hi-1].first+pieces[hi-1].pages != p.first {
			lo, moved = hi, 0 // something immovable lies between
		}
		if p.object >= 0 {
			moved += p.pages
		}
		for lo <= hi && p.first+p.pages-pieces[lo].first >= n {
			if best < 0 || moved < best {
				best, bestLo, bestHi = moved, lo, hi
			}
			if pieces[lo].object >= 0 {
				moved -= pieces[lo].pages
			}
			lo++
		}
	}
	if best < 0 {
		return 0, nil, false
	}
	for _, p := range pieces[bestLo : bestHi+1] {
		if p.object >= 0 {
			inside = append(inside, p.object)
		}
	}
	return pieces[bestLo].first, inside, true
}
