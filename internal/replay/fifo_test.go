package replay

import (
	"time"

	"cascadekv/cascade/policy"
)

// fifo evicts in the order of arrival. When its tier is full it admits only what was
// missed before, or evicted lately: what is asked for once does not enter.
type fifo struct {
	policy.Ranking
	capacity, bytes int64
	blocks          map[policy.Node]policy.Meta
	ghosts          map[uint64]int // misses and evictions, by fingerprint
	order           []uint64       // of ghosts, the oldest first
}

func newFIFO(capacity int64) *fifo {
	return &fifo{capacity: capacity, blocks: map[policy.Node]policy.Meta{}, ghosts: map[uint64]int{}}
}

func (f *fifo) Name() string                    { return "fifo" }
func (f *fifo) Update(policy.Node, policy.Meta) {}

func (f *fifo) Admit(_ time.Duration, m policy.Meta) bool {
	return f.bytes+2*m.Size <= f.capacity || f.ghosts[m.Fingerprint] > 1
}

func (f *fifo) Insert(_ time.Duration, m policy.Meta) policy.Node {
	n := f.Add(0, m)
	f.blocks[n], f.bytes = m, f.bytes+m.Size
	return n
}

func (f *fifo) Remove(n policy.Node, evicted bool) {
	if f.bytes -= f.blocks[n].Size; evicted {
		f.remember(f.blocks[n].Fingerprint)
	}
	f.Drop(n)
}

func (f *fifo) Access(r *policy.Request) {
	for _, ref := range r.Chain[:r.Hits] {
		if ref.Node == policy.NoNode {
			f.remember(ref.Fingerprint)
		}
	}
}

func (f *fifo) remember(fingerprint uint64) {
	if f.ghosts[fingerprint]++; f.ghosts[fingerprint] == 1 {
		f.order = append(f.order, fingerprint)
	}
	if len(f.order) > 4096 {
		delete(f.ghosts, f.order[0])
		f.order = f.order[1:]
	}
}
