package simulate

import (
	"io"
	"math/rand/v2"

	"cascadekv/internal/trace"
)

// list is a trace in memory.
type list struct {
	requests []trace.Request
	at       int
}

func (l *list) Next(r *trace.Request) error {
	if l.at == len(l.requests) {
		return io.EOF
	}
	from := l.requests[l.at]
	l.at++
	hashes := append(r.Hashes[:0], from.Hashes...)
	*r = from
	r.Hashes = hashes
	return nil
}

// chains makes a trace of prompts in a random tree of so many blocks: each asks for a block
// and all before it.
func chains(seed uint64, blocks, requests int) []trace.Request {
	random := rand.New(rand.NewPCG(seed, 1))
	parents := make([]int, blocks)
	for b := range parents {
		if parents[b] = -1; b > 0 && random.IntN(4) > 0 {
			parents[b] = random.IntN(b)
		}
	}
	var all []trace.Request
	at := int64(0)
	for range requests {
		at += random.Int64N(5000)
		last := random.IntN(blocks)
		if random.IntN(2) == 0 { // some are asked for more often
			last = random.IntN(last + 1)
		}
		r := trace.Request{Timestamp: at}
		for b := last; b >= 0; b = parents[b] {
			r.Hashes = append([]uint64{uint64(b) + 1000}, r.Hashes...)
		}
		r.InputTokens = len(r.Hashes) * trace.BlockTokens
		all = append(all, r)
	}
	return all
}
