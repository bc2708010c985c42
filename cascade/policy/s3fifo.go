package policy

import "time"

// Classes of s3fifo.
const (
	small = iota
	main
)

const (
	// smallPart is the part of the tier for blocks that have not proved themselves, as one in
	// so many, and mostUses how far uses are counted.
	smallPart = 10
	mostUses  = 3
)

// s3fifo is S3-FIFO (Yang et al., SOSP 2023): a small queue for new blocks, and the main one
// for those that were used there more than once, or came back soon. A block that was used
// goes through the main queue once more for each use. One that was held when its turn came
// has had it, and leaves when it may: its uses are from before.
type s3fifo struct {
	Ranking
	capacity int64 // bytes of the tier, 0 when unbounded
	left     ghosts
	reached  [2]uint64 // key of the last block that had another round, by class
}

func newS3FIFO(capacity int64) *s3fifo { return &s3fifo{capacity: capacity, left: newGhosts()} }

// Name implements Policy.
func (*s3fifo) Name() string { return S3FIFO }

// Insert implements Policy.
func (s *s3fifo) Insert(_ time.Duration, m Meta) Node {
	class := small
	if s.left.forget(s.left.find(m.Fingerprint)) {
		class = main
	}
	return s.Add(class, m)
}

// Remove implements Policy.
func (s *s3fifo) Remove(n Node, evicted bool) {
	if !s.Known(n) {
		return
	}
	if b := s.at(n); evicted && b.class == small && !s.old(n) {
		s.left.remember(b.print, b.size)
	}
	s.Drop(n)
	s.left.trim(s.space()-s.space()/smallPart, mostGhosts(s.Len(), s.space()))
}

// space is how many bytes there are for blocks.
func (s *s3fifo) space() int64 { return max(s.capacity, s.total()) }

// Access implements Policy.
func (s *s3fifo) Access(r *Request) {
	s.renew(r)
	for _, ref := range r.Chain[:min(max(r.Hits, 0), len(r.Chain))] {
		if s.Known(ref.Node) {
			s.use(ref.Node, mostUses)
		}
	}
}

// Victim implements Policy.
func (s *s3fifo) Victim() (Node, bool) {
	if n, ok := s.eldest(); ok {
		return n, true
	}
	for {
		order := [2]int{main, small}
		if s.bytes[small] >= s.space()/smallPart {
			order = [2]int{small, main}
		}
		n, ok := s.either(order[0], order[1])
		if !ok {
			return n, false
		}
		b := s.at(n)
		switch due := b.key >= s.reached[b.class]; {
		case due && b.class == small && b.uses > 1:
			s.reached[small] = b.key
			b.uses = 0
		case due && b.class == main && b.uses > 0:
			s.reached[main] = b.key
			b.uses--
		default:
			return n, true
		}
		s.Touch(n, main)
	}
}
