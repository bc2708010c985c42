package policy

import "time"

// scratch is the request of all tests, so that making one allocates nothing: no
// test of this package runs beside another.
var scratch Request

// requestFor is a request for blocks of a tier, head first, of which the first hits
// were asked for. It lasts until the next call.
func requestFor(now time.Duration, hits int, nodes ...Node) *Request {
	scratch = Request{Now: now, Hits: hits, Chain: scratch.Chain[:0]}
	for _, n := range nodes {
		scratch.Chain = append(scratch.Chain, Ref{Node: n})
	}
	return &scratch
}
