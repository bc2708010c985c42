package policy

import (
	"fmt"
	"math/rand"
	"testing"
	"time"
)

// reference is the three policies written for reading: one list, searched from
// end to end, no heap and no linked lists.
type reference struct {
	name     string
	capacity int64
	stamp    int
	blocks   map[Node]*refBlock
}

type refBlock struct {
	meta      Meta
	stamp     int
	holds     int
	protected bool // by the prefix policy
}

func (r *reference) insert(n Node, m Meta) {
	r.stamp++
	r.blocks[n] = &refBlock{meta: m, stamp: r.stamp}
}

func (r *reference) access(chain []Node, hits int) {
	for i := range chain {
		if r.name == Prefix {
			i = len(chain) - 1 - i
		}
		r.stamp++
		b := r.blocks[chain[i]]
		b.stamp = r.stamp
		b.protected = b.protected || i < hits && r.name == Prefix
	}
	for {
		var sum, all int64
		var oldest *refBlock
		for _, b := range r.blocks {
			all += b.meta.Size
			if !b.protected {
				continue
			}
			sum += b.meta.Size
			if oldest == nil || b.stamp < oldest.stamp {
				oldest = b
			}
		}
		if r.capacity > 0 {
			all = r.capacity
		}
		if sum <= all/5 {
			return
		}
		r.stamp++
		oldest.protected, oldest.stamp = false, r.stamp
	}
}

// last reports whether b leaves after those for which it is false.
func (r *reference) last(b *refBlock) bool {
	return b.protected || r.name == Paper && (b.meta.Prefix || b.meta.Refs > 1)
}

func (r *reference) victim() (Node, bool) {
	var found *refBlock
	var victim Node
	for n, b := range r.blocks {
		if b.holds > 0 {
			continue
		}
		if found == nil || !r.last(b) && r.last(found) ||
			r.last(b) == r.last(found) && b.stamp < found.stamp {
			victim, found = n, b
		}
	}
	return victim, found != nil
}

// pick returns a random known block; false when there is none.
func pick(rng *rand.Rand, nodes []Node) (Node, bool) {
	if len(nodes) == 0 {
		return 0, false
	}
	return nodes[rng.Intn(len(nodes))], true
}

func randomMeta(rng *rand.Rand) Meta {
	return Meta{Size: int64(rng.Intn(20)), Prefix: rng.Intn(4) == 0, Refs: rng.Intn(4)}
}

// randomChain returns distinct blocks in random order.
func randomChain(rng *rand.Rand, nodes []Node) []Node {
	chain := append([]Node(nil), nodes...)
	rng.Shuffle(len(chain), func(i, j int) { chain[i], chain[j] = chain[j], chain[i] })
	return chain[:rng.Intn(min(len(chain), 12)+1)]
}

func TestPoliciesMatchReference(t *testing.T) {
	for _, name := range Names() {
		for _, capacity := range []int64{0, 1, 60, 1000} {
			for seed := range int64(4) {
				t.Run(fmt.Sprintf("%s/%d/%d", name, capacity, seed), func(t *testing.T) {
					matchReference(t, name, capacity, rand.New(rand.NewSource(seed)))
				})
			}
		}
	}
}

func matchReference(t *testing.T, name string, capacity int64, rng *rand.Rand) {
	p, err := New(name, capacity)
	if err != nil {
		t.Fatal(err)
	}
	ref := &reference{name: name, capacity: capacity, blocks: map[Node]*refBlock{}}
	var nodes []Node
	remove := func(n Node) {
		p.Remove(n, true)
		delete(ref.blocks, n)
		for i := range nodes {
			if nodes[i] == n {
				nodes = append(nodes[:i], nodes[i+1:]...)
				return
			}
		}
	}
	for step := range 3000 {
		n, ok := pick(rng, nodes)
		switch op := rng.Intn(100); {
		case op < 25 && len(nodes) < 60 || !ok:
			m := randomMeta(rng)
			n := p.Insert(time.Duration(step), m)
			if ref.blocks[n] != nil {
				t.Fatalf("step %d: Insert returned node %d, which is in use", step, n)
			}
			ref.insert(n, m)
			nodes = append(nodes, n)
		case op < 32:
			remove(n)
		case op < 50:
			chain := randomChain(rng, nodes)
			hits := rng.Intn(len(chain) + 1)
			p.Access(requestFor(time.Duration(step), hits, chain...))
			ref.access(chain, hits)
		case op < 65:
			p.Hold(n)
			ref.blocks[n].holds++
		case op < 80:
			p.Release(n)
			ref.blocks[n].holds = max(ref.blocks[n].holds-1, 0)
		case op < 85:
			m := randomMeta(rng)
			m.Size = ref.blocks[n].meta.Size
			p.Update(n, m)
			ref.blocks[n].meta = m
		default:
			if victim, ok := p.Victim(); ok {
				remove(victim)
			}
		}
		got, gotOK := p.Victim()
		if want, wantOK := ref.victim(); got != want || gotOK != wantOK {
			t.Fatalf("step %d: victim %d %v, reference says %d %v", step, got, gotOK, want, wantOK)
		}
		if p.Len() != len(ref.blocks) {
			t.Fatalf("step %d: %d blocks, reference has %d", step, p.Len(), len(ref.blocks))
		}
	}
}
