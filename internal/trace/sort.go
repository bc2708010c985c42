package trace

import (
	"cmp"
	"io"
	"slices"
)

// Sorted is a Source of requests in order of time. It is not safe for concurrent use.
type Sorted struct{ left []Request }

// Sort reads src to its end, at most limit requests unless limit is 0, and
// keeps all of them. Requests of the same time keep their order.
func Sort(src Source, limit int) (*Sorted, error) {
	var all []Request
	var req Request
	for limit <= 0 || len(all) < limit {
		if err := src.Next(&req); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		kept := req
		kept.Hashes = slices.Clone(req.Hashes)
		all = append(all, kept)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	return &Sorted{all}, nil
}

// Len returns how many requests are left.
func (s *Sorted) Len() int { return len(s.left) }

// Next implements Source.
func (s *Sorted) Next(req *Request) error {
	if len(s.left) == 0 {
		return io.EOF
	}
	hashes := append(req.Hashes[:0], s.left[0].Hashes...)
	*req = s.left[0]
	req.Hashes = hashes
	s.left = s.left[1:]
	return nil
}
