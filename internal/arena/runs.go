package arena

import "math/bits"

// run is a stretch of free pages in the list of its bin.
type run struct {
	first, pages int64
	prev, next   *run
	bin          int
}

// runs keeps the free runs, merged with their neighbours, in bins by length:
// eight bins to each doubling, as the classes, so that every run of a bin can
// hold every class that maps to it.
type runs struct {
	byStart, byEnd map[int64]*run // first page; page after the last
	bins           []*run
	full           []uint64 // bit i: bins[i] is not empty
	pages          int64    // free in all
	spare          *run     // structs for reuse
}

const numBins = 8 * 40

func newRuns() runs {
	return runs{
		byStart: map[int64]*run{},
		byEnd:   map[int64]*run{},
		bins:    make([]*run, numBins),
		full:    make([]uint64, numBins/64),
	}
}

// binOf is the bin of a run: the largest class not above its length.
func binOf(pages int64) int {
	if pages < 16 {
		return int(pages)
	}
	shift := bits.Len64(uint64(pages)) - 4 // pages is (8..15) << shift
	return 16 + (shift-1)*8 + int(pages>>shift) - 8
}

// take cuts n pages from a free run and returns the first. n must be a class.
func (r *runs) take(n int64) (int64, error) {
	b := r.nextFull(binOf(n))
	if b < 0 {
		return 0, ErrNoSpace
	}
	f := r.bins[b]
	first := f.first
	r.takeFrom(f, first, n)
	return first, nil
}

// alignedTries is how many runs of each bin takeAligned looks at.
const alignedTries = 8

// takeAligned cuts n pages, a class, from a free run so that what it returns plus
// origin is a multiple of align; where no run is found that has such pages, it
// does as take.
func (r *runs) takeAligned(n, align, origin int64) (int64, error) {
	for b := r.nextFull(binOf(n)); b >= 0; b = r.nextFull(b + 1) {
		f := r.bins[b]
		for range alignedTries {
			if f == nil {
				break
			}
			first := f.first + (align-(f.first+origin)%align)%align
			if first+n <= f.first+f.pages {
				r.takeFrom(f, first, n)
				return first, nil
			}
			f = f.next
		}
	}
	return r.take(n)
}

// takeAt removes the pages [first, first+n) from a free run that covers them;
// false when none does.
func (r *runs) takeAt(first, n int64) bool {
	f := r.covering(first)
	if f == nil || first+n > f.first+f.pages {
		return false
	}
	r.takeFrom(f, first, n)
	return true
}

// takeFrom removes the pages [first, first+n) from the free run f, which covers
// them.
func (r *runs) takeFrom(f *run, first, n int64) {
	r.remove(f)
	if first > f.first {
		r.add(f.first, first-f.first)
	}
	if end := f.first + f.pages; end > first+n {
		r.add(first+n, end-first-n)
	}
	f.next, r.spare = r.spare, f
}

// covering finds the free run that page p lies in. It is used in recovery and
// compaction only, where the run mostly starts at p.
func (r *runs) covering(p int64) *run {
	if f := r.byStart[p]; f != nil {
		return f
	}
	for _, f := range r.byStart {
		if f.first <= p && p < f.first+f.pages {
			return f
		}
	}
	return nil
}

// put gives pages back and merges them with free neighbours.
func (r *runs) put(first, n int64) {
	if n == 0 {
		return
	}
	if left := r.byEnd[first]; left != nil {
		r.remove(left)
		first, n = left.first, n+left.pages
	}
	if right := r.byStart[first+n]; right != nil {
		r.remove(right)
		n += right.pages
	}
	r.add(first, n)
}

func (r *runs) add(first, n int64) {
	f := r.spare
	if f == nil {
		f = new(run)
	} else {
		r.spare = f.next
	}
	*f = run{first: first, pages: n, bin: binOf(n), next: r.bins[binOf(n)]}
	if f.next != nil {
		f.next.prev = f
	}
	r.bins[f.bin] = f
	r.full[f.bin/64] |= 1 << (f.bin % 64)
	r.byStart[first], r.byEnd[first+n] = f, f
	r.pages += n
}

func (r *runs) remove(f *run) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		r.bins[f.bin] = f.next
		if f.next == nil {
			r.full[f.bin/64] &^= 1 << (f.bin % 64)
		}
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
	delete(r.byStart, f.first)
	delete(r.byEnd, f.first+f.pages)
	r.pages -= f.pages
}

// nextFull returns the first non-empty bin from b on, or -1.
func (r *runs) nextFull(b int) int {
	if b >= numBins {
		return -1
	}
	w := b / 64
	m := r.full[w] >> (b % 64) << (b % 64)
	for m == 0 {
		if w++; w == len(r.full) {
			return -1
		}
		m = r.full[w]
	}
	return w*64 + bits.TrailingZeros64(m)
}
