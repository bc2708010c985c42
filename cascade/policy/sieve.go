package policy

import "time"

// sieve is SIEVE (Zhang et al., NSDI 2024): a queue in the order of arrival, in which a hand
// goes from the oldest to the youngest and begins anew. It takes the first block that was not
// used since it was there last. Where the hand was, the others keep their places: they change
// their class, ahead of it or behind.
type sieve struct {
	Ranking
	front int // class of the blocks that the hand has yet to pass
}

// Name implements Policy.
func (*sieve) Name() string { return SIEVE }

// Insert implements Policy.
func (s *sieve) Insert(_ time.Duration, m Meta) Node { return s.Add(s.front, m) }

// Access implements Policy.
func (s *sieve) Access(r *Request) {
	for at, ref := range r.Chain {
		switch {
		case !s.Known(ref.Node):
		case s.old(ref.Node):
			s.Touch(ref.Node, s.front)
		case at < r.Hits:
			s.use(ref.Node, 1)
		}
	}
}

// Victim implements Policy.
func (s *sieve) Victim() (Node, bool) {
	if n, ok := s.eldest(); ok {
		return n, true
	}
	for {
		n, ok := s.either(s.front, 1-s.front)
		if !ok {
			return n, false
		}
		b := s.at(n)
		s.front = int(b.class)
		if b.uses == 0 {
			return n, true
		}
		b.uses = 0
		s.Reclass(n, 1-s.front)
	}
}
