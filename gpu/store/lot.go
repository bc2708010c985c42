package store

import (
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// lotShare and lotsShare are which part of the groups one lot takes at most, and all of them together. While groups are made others
// have half of those that are ready.
const (
	lotShare  = 16
	lotsShare = 4
)

// Lot is groups of containers in which one writer has all GPU files that come free: nobody else writes there. Its methods are safe for
// concurrent use.
type Lot struct {
	s      *Store
	groups []int
	files  int

	// Guarded by the mutex of the store:
	free   []uint32
	closed bool
}

// TakeLot makes a lot of groups in which no block lies, the last ones; nil if there are none, or lots have their share of the pool.
// The store keeps its files, and its locks, until the lot is closed.
func (s *Store) TakeLot() *Lot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	all := s.pool.groups()
	free, ready := make([]int, all), 0 // files of each group
	for _, file := range s.mu.free.files {
		free[int(file)/s.layout.each]++
	}
	for g := range all {
		if s.pool.ready(g) {
			ready++
		}
	}
	l := &Lot{s: s}
	most := min(max(1, all/lotShare), all/lotsShare-len(s.mu.free.lots), ready/2-len(s.mu.free.lots))
	for g := all - 1; g >= 0 && len(l.groups) < most; g-- {
		if first, end := s.pool.group(g); end > first && free[g] == end-first {
			l.groups, l.files = append(l.groups, g), l.files+end-first
			s.mu.free.lots[g] = l
		}
	}
	if len(l.groups) == 0 {
		return nil
	}
	files := s.mu.free.files
	s.mu.free.files = files[:0]
	for _, file := range files {
		s.freeLocked(file)
	}
	s.late.Add(1)
	return l
}

// freeLocked has a GPU file be used again, by whoever writes to its group.
func (s *Store) freeLocked(file uint32) {
	free := &s.mu.free.files
	if l := s.mu.free.lots[int(file)/s.layout.each]; l != nil {
		free = &l.free
	}
	*free = append(*free, file)
}

// Files returns how many GPU files the lot has, and Free how many of them a put can have at once.
func (l *Lot) Files() int { return l.files }

// Free is described with Files.
func (l *Lot) Free() int {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return len(l.free)
}

// Containers returns the numbers of the lot's containers: see Store.Containers.
func (l *Lot) Containers() (numbers []int) {
	dirs := l.s.layout.dirs
	for _, g := range l.groups {
		for d := range dirs {
			numbers = append(numbers, g*dirs+d)
		}
	}
	return numbers
}

// Reserve is Store.Reserve with GPU files of the lot that are free now; nil if they are too few. It costs no I/O. Errors: tiers.ErrClosed.
func (l *Lot) Reserve(ids []block.ID) (*Put, error) {
	p, _, err := l.s.reserve(ids, &l.free)
	return p, err
}

// Close gives the GPU files back to all who write, those that still have blocks too. Nobody may write to the lot's containers any
// more. Those whose headers were written over get them again, for what others put there is to be found later; it may wait for the disk. After
// an error nobody gets the files. Errors: tiers.ErrUnavailable.
func (l *Lot) Close() error {
	s := l.s
	s.mu.Lock()
	closed := l.closed
	l.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	defer s.late.Done()
	for _, c := range l.Containers() {
		if err := s.pool.mend(s.pool.files[c], c); err != nil {
			return fmt.Errorf("%w: nvme: a container that its writer has spoiled: %w", tiers.ErrUnavailable, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range l.groups {
		delete(s.mu.free.lots, g)
	}
	for _, file := range l.free {
		s.freeLocked(file)
	}
	l.free = nil
	return nil
}

// Extents appends where the first size bytes of the block at i are to be written, in their order, by whoever does that by itself, and
// has each object's last page to its end. Nothing is appended of one that is passed over. It costs no I/O. Errors: ErrMemory, of a size
// that no block has.
func (p *Put) Extents(out []Extent, i int, size int64) ([]Extent, error) {
	b := &p.blocks[i]
	if b.skip || p.ended {
		return out, p.s.checkSizes([]int64{size}, 1)
	}
	return p.s.extents(out, b.record, size)
}

// Written is StoreAll of the block at i by somebody else, who has written its first size bytes where Extents says: crcs has the CRC32C of
// each of these.
func (p *Put) Written(i int, size int64, crcs []uint32) {
	b := &p.blocks[i]
	if b.skip || p.ended {
		return
	}
	copy(b.crcs, crcs)
	for o := range b.written {
		b.written[o] = o < len(crcs) || int64(o)*p.s.layout.bytes >= size
	}
}
