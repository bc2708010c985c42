package arena

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrNoSpace means no free run or cell is large enough.
var ErrNoSpace = errors.New("arena: no space")

// Zone separates objects that a later process must find by walking slabs from
// those it finds through them.
type Zone uint8

const (
	Payload Zone = iota // block bytes: found through a record
	Records             // small self-describing records: found by walking
	numZones
)

const recordTag = 0x80 // in a tag: the slab belongs to Records

// Allocator hands out byte ranges of a space that starts empty and grows. It
// is bookkeeping only: offsets in, offsets out. Not safe for concurrent use.
// Every operation is O(1) but for the search of a non-empty bin, which is a
// scan of a bitmap of a few words.
type Allocator struct {
	tags  []byte // one for each page; survives the process when the caller maps it
	pages int64  // grown so far

	runs  runs
	slabs map[int64]*slab // by first page
	free  [numZones][]*slab
	used  int64 // bytes handed out, rounded

	// Origin is where the space begins in its mapping, in bytes: a multiple of
	// Page, set before the space grows. Payloads of whole huge pages are put
	// where the mapping has them, as long as there is such room.
	Origin int64

	// Fresh, when set, is called with every slab before its tag is written: the
	// offset of its first cell, the cell size and their number. An owner that
	// walks records clears the cells there, or it would read what a payload
	// left behind as records.
	Fresh func(z Zone, off, cell, cells int64)
}

// NewAllocator returns an empty allocator. len(tags) bounds its growth, in
// pages; the allocator writes tags and, in Adopt, reads them.
func NewAllocator(tags []byte) *Allocator {
	a := &Allocator{tags: tags, slabs: map[int64]*slab{}, runs: newRuns()}
	for z := range a.free {
		a.free[z] = make([]*slab, numClasses)
	}
	return a
}

// Grow adds n bytes (a multiple of Page) at the end of the space.
func (a *Allocator) Grow(n int64) {
	first := a.pages
	a.pages += n / Page
	a.runs.put(first, n/Page)
}

// Size is the space grown so far, in bytes.
func (a *Allocator) Size() int64 { return a.pages * Page }

// Used is the space handed out, rounding included, in bytes.
func (a *Allocator) Used() int64 { return a.used }

// Free is the space no run covers, in bytes: what is neither handed out nor
// held as empty cells of slabs.
func (a *Allocator) Free() int64 { return a.runs.pages * Page }

// Alloc returns the offset of RoundSize(size) free bytes; objects larger than
// a page start on one. A size of 0 takes nothing and returns 0. The error is
// ErrNoSpace.
func (a *Allocator) Alloc(size int64, z Zone) (int64, error) {
	n := RoundSize(size)
	if n == 0 {
		return 0, nil
	}
	var off int64
	var err error
	switch {
	case wholeHugePages(size):
		off, err = a.runs.takeAligned(n/Page, hugePages, a.Origin/Page)
		off *= Page
	case n > MaxCell:
		off, err = a.runs.take(n / Page)
		off *= Page
	default:
		off, err = a.allocCell(n, z)
	}
	if err == nil {
		a.used += n
	}
	return off, err
}

// Release gives back what Alloc returned for the same size.
func (a *Allocator) Release(off, size int64) {
	n := RoundSize(size)
	if n == 0 {
		return
	}
	a.used -= n
	if n > MaxCell {
		a.runs.put(off/Page, n/Page)
		return
	}
	s := a.slabOf(off, n)
	s.put((off - s.first*Page) / n)
	a.settle(s)
}

func (a *Allocator) allocCell(n int64, z Zone) (int64, error) {
	c := cellClass(n)
	s := a.free[z][c]
	if s == nil {
		first, err := a.runs.take(slabPages(n))
		if err != nil {
			return 0, err
		}
		s = a.addSlab(first, c, z)
		if a.Fresh != nil {
			a.Fresh(z, first*Page, n, s.cells())
		}
		a.tags[first] = s.tag()
	}
	i := s.take()
	if s.free == 0 {
		a.unlink(s)
	}
	return s.first*Page + i*n, nil
}

// settle puts a slab that got a cell back where it belongs: among those with
// room, or, when nothing is left in it, back to the runs.
func (a *Allocator) settle(s *slab) {
	switch {
	case s.free == s.cells():
		if s.linked {
			a.unlink(s)
		}
		a.tags[s.first] = 0
		delete(a.slabs, s.first)
		a.runs.put(s.first, slabPages(s.cell))
	case !s.linked:
		a.link(s)
	}
}

func (a *Allocator) addSlab(first int64, class int, z Zone) *slab {
	s := newSlab(first, class, z)
	a.slabs[first] = s
	a.link(s)
	return s
}

func (a *Allocator) link(s *slab) {
	head := &a.free[s.zone][s.class]
	s.prev, s.next, s.linked = nil, *head, true
	if *head != nil {
		(*head).prev = s
	}
	*head = s
}

func (a *Allocator) unlink(s *slab) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		a.free[s.zone][s.class] = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next, s.linked = nil, nil, false
}

// slabOf finds the slab of a cell: its first page is at most a slab's length
// before the cell.
func (a *Allocator) slabOf(off, cell int64) *slab {
	for p := off / Page; p > off/Page-slabPages(cell); p-- {
		if s := a.slabs[p]; s != nil {
			return s
		}
	}
	return nil
}

// slab is a run cut into cells. Its map of free cells lives outside the space.
type slab struct {
	first      int64 // page
	cell       int64 // bytes
	class      int
	zone       Zone
	free       int64
	bits       []uint64 // set: free
	prev, next *slab
	linked     bool
}

func newSlab(first int64, class int, z Zone) *slab {
	s := &slab{first: first, cell: cellSize(class), class: class, zone: z}
	s.free = s.cells()
	s.bits = make([]uint64, (s.free+63)/64)
	for i := range s.free {
		s.bits[i/64] |= 1 << (i % 64)
	}
	return s
}

func (s *slab) cells() int64 { return slabPages(s.cell) * Page / s.cell }

func (s *slab) tag() byte {
	t := byte(s.class + 1)
	if s.zone == Records {
		t |= recordTag
	}
	return t
}

func (s *slab) take() int64 {
	for w, b := range s.bits {
		if b != 0 {
			i := bits.TrailingZeros64(b)
			s.bits[w] &^= 1 << i
			s.free--
			return int64(w*64 + i)
		}
	}
	return -1
}

func (s *slab) put(i int64) {
	s.bits[i/64] |= 1 << (i % 64)
	s.free++
}

func (s *slab) isFree(i int64) bool { return s.bits[i/64]&(1<<(i%64)) != 0 }

// String is for error messages and debugging.
func (a *Allocator) String() string {
	return fmt.Sprintf("arena: %d of %d bytes handed out, %d slabs, %d free runs", a.used, a.Size(), len(a.slabs), len(a.runs.byStart))
}
