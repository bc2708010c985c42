package cascade

import (
	"cascadekv/cascade/inference"
	"cascadekv/cascade/residency"
)

// Asked records that keys were asked for together, in order: from that s infers the
// chains of namespaces where nobody names parents. The keys are only read.
func Asked[K inference.Text](s *Store, ns string, keys []K) { residency.Asked(s.state, ns, keys) }

// PutTogether is Asked for keys that are put together, before or after.
func PutTogether(s *Store, ns string, keys []string) { residency.Put(s.state, ns, keys) }

// mostPipelined bounds the keys of one pipeline that are taken for one request.
const mostPipelined = 1 << 12

// Pipeline is the keys, in order, of commands of one key each that came together. It belongs
// to one goroutine.
type Pipeline struct{ asked, stored []string }

// Asked adds a key that was asked for, unless it stands alone: more reports whether
// something came behind its command.
func (p *Pipeline) Asked(key []byte, more bool) { add(&p.asked, key, more) }

// Stored is Asked for a key that was put.
func (p *Pipeline) Stored(key []byte, more bool) { add(&p.stored, key, more) }

func add(keys *[]string, key []byte, more bool) {
	if (len(*keys) > 0 || more) && len(*keys) < mostPipelined {
		*keys = append(*keys, string(key))
	}
}

// End has s learn which keys of ns came together.
func (p *Pipeline) End(s *Store, ns string) {
	if len(p.asked) > 1 {
		Asked(s, ns, p.asked)
	}
	if len(p.stored) > 1 {
		PutTogether(s, ns, p.stored)
	}
	clear(p.asked)
	clear(p.stored)
	p.asked, p.stored = p.asked[:0], p.stored[:0]
}
