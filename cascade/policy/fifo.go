package policy

import "time"

// fifo evicts in the order of arrival.
type fifo struct{ Ranking }

// Name implements Policy.
func (*fifo) Name() string { return FIFO }

// Insert implements Policy.
func (f *fifo) Insert(_ time.Duration, m Meta) Node { return f.Add(0, m) }

// Access implements Policy.
func (f *fifo) Access(r *Request) { f.renew(r) }

// renew makes the blocks of a request that were old when they came as young as if they had
// come now.
func (r *Ranking) renew(request *Request) {
	for at := len(request.Chain) - 1; at >= 0; at-- {
		if n := request.Chain[at].Node; r.Known(n) && r.old(n) {
			r.Touch(n, 0)
		}
	}
}
