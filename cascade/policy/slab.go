package policy

// slab numbers elements from 0 on and reuses the numbers of those that were freed. It grows
// without copying, and has no more than a chunk that is not in use. The zero value is
// empty.
type slab[T any] struct {
	chunks []*[slabChunk]T
	free   []uint32
	made   uint32 // elements ever made
}

// slabChunk is how many elements there are in a chunk. Those of this package fill whole pages.
const slabChunk = 1 << 11

// at returns an element, which stays where it is.
func (s *slab[T]) at(i uint32) *T { return &s.chunks[i/slabChunk][i%slabChunk] }

// take returns the number of an element, with its zero value.
func (s *slab[T]) take() uint32 {
	if last := len(s.free) - 1; last >= 0 {
		i := s.free[last]
		s.free = s.free[:last]
		return i
	}
	if s.made%slabChunk == 0 {
		s.chunks = append(s.chunks, new([slabChunk]T))
	}
	s.made++
	return s.made - 1
}

// give frees an element.
func (s *slab[T]) give(i uint32) {
	var zero T
	*s.at(i) = zero
	s.free = append(s.free, i)
}

// len is how many elements are in use.
func (s *slab[T]) len() int { return int(s.made) - len(s.free) }
