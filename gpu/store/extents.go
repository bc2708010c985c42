package store

import (
	"fmt"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// Extent is where a part of a block lies, as far as it counts: an object of it.
type Extent struct {
	Container int   // by its number, see Store.Containers
	Offset    int64 // in the container; whole pages
	Bytes     int64
	CRC       uint32 // CRC32C of these bytes
}

// Extents appends where the first size bytes of the block at i lie, in their order, for whoever reads them by itself: they
// stay there until Close, and are to be verified. It costs no I/O. Errors: ErrMemory, of a size that no block has.
func (g *Get) Extents(out []Extent, i int, size int64) ([]Extent, error) {
	return g.s.extents(out, g.blocks[i].record, size)
}

// extents appends where the first size bytes of a block lie.
func (s *Store) extents(out []Extent, b record, size int64) ([]Extent, error) {
	l := s.layout
	if err := s.checkSizes([]int64{size}, 1); err != nil {
		return out, err
	}
	for o := 0; int64(o)*l.bytes < size; o++ {
		e := Extent{Bytes: min(size-int64(o)*l.bytes, l.bytes), CRC: b.crcs[o]}
		e.Container, e.Offset = l.place(b.file, o)
		out = append(out, e)
	}
	return out, nil
}

// Containers returns the paths of the containers by their number, "" of those that are not ready. A container that is
// ready stays until Close.
func (s *Store) Containers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]string, len(s.pool.files))
	for i := range all {
		if s.pool.files[i] != nil {
			all[i] = s.pool.path(i)
		}
	}
	return all
}

// Probe reads from one container of each directory that is ready, and reports whether that can be done at all. It waits for the disks.
// Errors: tiers.ErrUnavailable, tiers.ErrClosed.
func (s *Store) Probe() error {
	return s.probe(func() (some []int) {
		for d := range s.layout.dirs {
			for c := d; c < len(s.pool.files); c += s.layout.dirs {
				if s.pool.files[c] != nil {
					some = append(some, c)
					break
				}
			}
		}
		return some
	}, false)
}

// Probe is Store.Probe with a container of the lot of each directory, and writes to them too: their headers, as they have to be.
func (l *Lot) Probe() error {
	return l.s.probe(func() []int { return l.Containers()[:l.s.layout.dirs] }, true)
}

// probe reads from some containers, and writes their headers if write is true.
func (s *Store) probe(of func() []int, write bool) error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return fmt.Errorf("nvme: %w", tiers.ErrClosed)
	}
	s.late.Add(1)
	defer s.late.Done()
	files := map[int]vfs.File{}
	for _, c := range of() {
		files[c] = s.pool.files[c]
	}
	s.mu.Unlock()
	for c, f := range files {
		if err := s.pool.probe(f, c, write); err != nil {
			return fmt.Errorf("%w: nvme: %w", tiers.ErrUnavailable, err)
		}
	}
	return nil
}
