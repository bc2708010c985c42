package simulate

import (
	"math/bits"
	"testing"

	"cascadekv/cascade/policy"
	"cascadekv/internal/trace"
)

// drive serves a spool and returns the hits; look is called after each request.
func drive(t *testing.T, s *spool, under simulated, look func(r *request)) (hits int) {
	t.Helper()
	in := s.read(true)
	for range s.requests {
		r, err := in.advance()
		if err != nil {
			t.Fatal(err)
		}
		hits += under.serve(r)
		look(r)
	}
	return hits
}

func policyTier(t *testing.T, name string, capacity, unique int) *tier {
	t.Helper()
	p, err := policy.New(name, int64(capacity)*blockBytes)
	if err != nil {
		t.Fatal(err)
	}
	return newTier(p, capacity, unique)
}

// TestTierHasNoHoles: under any policy, a block's parent is in the tier with it, there are
// no more blocks than the capacity, and all numbers agree.
func TestTierHasNoHoles(t *testing.T) {
	for _, name := range Policies() {
		for seed := range uint64(20) {
			s := spoolOf(t, chains(seed, 40, 200))
			for _, capacity := range []int{1, 2, 5, 20, 40} {
				tier := policyTier(t, name, capacity, s.unique)
				before := map[uint32]uint32{} // the block before each that has one
				drive(t, s, tier, func(r *request) {
					for i, b := range r.blocks[min(1, len(r.blocks)):] {
						before[b] = r.blocks[i]
					}
					count := 0
					for number, n := range tier.nodes {
						if n == policy.NoNode {
							continue
						}
						count++
						b := tier.blocks[n]
						if b.number != uint32(number) {
							t.Fatalf("%s: block %d is at the node of %d", name, number, b.number)
						}
						parent, hasParent := before[b.number]
						if hasParent && tier.nodes[parent] != b.parent || !hasParent && b.parent != policy.NoNode {
							t.Fatalf("%s: block %d without its parent", name, number)
						}
					}
					if count != tier.count || count > capacity || count != tier.policy.Len() {
						t.Fatalf("%s: %d blocks, counted as %d and %d, in a tier of %d", name, count, tier.count, tier.policy.Len(), capacity)
					}
				})
			}
		}
	}
}

// TestTierOfNoPrefixes: where numbers stand for blocks whatever is before them, a tier
// counts right, hits end at the first block that is missing, and what was hit stays until the
// request ends.
func TestTierOfNoPrefixes(t *testing.T) {
	requests := chains(3, 40, 400)
	for i := range requests {
		hashes := requests[i].Hashes
		if i%3 == 0 && len(hashes) > 1 {
			hashes[0], hashes[len(hashes)-1] = hashes[len(hashes)-1], hashes[0]
		}
	}
	s := spoolOf(t, requests)
	for _, name := range Policies() {
		for _, capacity := range []int{2, 4, 10} {
			tier := policyTier(t, name, capacity, s.unique)
			in := s.read(false)
			for range requests {
				r, err := in.advance()
				if err != nil {
					t.Fatal(err)
				}
				want := 0
				for want < len(r.blocks) && tier.nodes[r.blocks[want]] != policy.NoNode {
					want++
				}
				if got := tier.serve(r); got != want {
					t.Fatalf("%s: %d hits, want %d", name, got, want)
				}
				for _, b := range r.blocks[:want] {
					if tier.nodes[b] == policy.NoNode {
						t.Fatalf("%s: block %d left while the request that found it went on", name, b)
					}
				}
				count := 0
				for _, n := range tier.nodes {
					if n != policy.NoNode {
						count++
					}
				}
				if count != tier.count || count > capacity {
					t.Fatalf("%s: %d blocks, counted as %d, in a tier of %d", name, count, tier.count, capacity)
				}
			}
		}
	}
	m := newMinimum(10, s.unique)
	drive(t, s, m, func(*request) { checkMin(t, m) })
}

func checkMin(t *testing.T, m *minimum) {
	t.Helper()
	count := 0
	for number, place := range m.places {
		if place == 0 {
			continue
		}
		count++
		b := m.blocks[place-1]
		if b.number != uint32(number) || b.held {
			t.Fatalf("block %d is at the place of %+v", number, b)
		}
		if leaf := b.children == 0; leaf != (b.leaf != 0) || leaf && m.leaves[b.leaf-1] != place-1 {
			t.Fatalf("block %d: %+v among the leaves %v", number, b, m.leaves)
		}
		if b.parent != 0 && m.places[m.blocks[b.parent-1].number] != b.parent {
			t.Fatalf("block %d without its parent", number)
		}
	}
	if count != len(m.blocks)-len(m.free) || count > m.capacity {
		t.Fatalf("%d blocks, counted as %d, in a tier of %d", count, len(m.blocks)-len(m.free), m.capacity)
	}
}

// TestNoneIsAboveMin on random traces.
func TestNoneIsAboveMin(t *testing.T) {
	for seed := range uint64(25) {
		s := spoolOf(t, chains(seed, 10+2*int(seed), 300))
		for _, capacity := range []int{1, 2, 3, 5, 8, 13, 30} {
			m := newMinimum(capacity, s.unique)
			most := drive(t, s, m, func(*request) { checkMin(t, m) })
			for _, name := range Policies() {
				if hits := drive(t, s, policyTier(t, name, capacity, s.unique), func(*request) {}); hits > most {
					t.Errorf("seed %d, capacity %d: %s hits %d, MIN %d", seed, capacity, name, hits, most)
				}
			}
		}
	}
}

// TestMinIsOptimal: on small traces MIN hits what the best of all choices does, of which
// each keeps any part of what was there and what was asked for that has no holes.
func TestMinIsOptimal(t *testing.T) {
	for seed := range uint64(400) {
		requests := chains(seed, 3+int(seed%5), 9)
		s := spoolOf(t, requests)
		for capacity := 1; capacity <= 4; capacity++ {
			want := bestOfAll(requests, capacity)
			if got := drive(t, s, newMinimum(capacity, s.unique), func(*request) {}); got != want {
				t.Errorf("seed %d, capacity %d: %d hits, %d are possible", seed, capacity, got, want)
			}
		}
	}
}

// bestOfAll tries all choices. A set of blocks is bits.
func bestOfAll(requests []trace.Request, capacity int) (most int) {
	parents := map[uint64]uint64{} // of a block's bit, 0 of a head
	bit := func(hash uint64) uint64 { return 1 << (hash - 1000) }
	best := map[uint64]int{0: 0} // hits so far, by what is in the tier
	for _, r := range requests {
		asked, parent := uint64(0), uint64(0)
		for _, h := range r.Hashes {
			parents[bit(h)], parent = parent, bit(h)
			asked |= bit(h)
		}
		next := map[uint64]int{}
		for in, hits := range best {
			for _, h := range r.Hashes {
				if in&bit(h) == 0 {
					break
				}
				hits++
			}
			union := in | asked
			for part := union; ; part = (part - 1) & union {
				if bits.OnesCount64(part) <= capacity && noHoles(part, parents) {
					next[part] = max(next[part], hits)
				}
				if part == 0 {
					break
				}
			}
		}
		best = next
	}
	for _, hits := range best {
		most = max(most, hits)
	}
	return most
}

func noHoles(set uint64, parents map[uint64]uint64) bool {
	for left := set; left != 0; left &= left - 1 {
		if parent := parents[left&-left]; parent != 0 && set&parent == 0 {
			return false
		}
	}
	return true
}
