package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSteps: at any time a tick is in the bin of the middle of its step, none of which is divided between that and
// an older one; and no two steps of a bin have the same place in the ring.
func TestSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 29))
	var a ages
	for now := uint32(0); now < math.MaxUint32/2; now += 1 + uint32(1)<<rng.IntN(27)>>rng.IntN(27) {
		a.advance(now)
		for range 20 {
			touched := now - min(now, rng.Uint32()>>rng.IntN(32))
			bin := a.bin(touched)
			for older := range bin {
				if middle := touched>>stepBits[older]<<stepBits[older] + halfStep(older); int64(now)-int64(middle) < int64(binEnds[older]) {
					t.Fatalf("now %d: tick %d is in bin %d, and not too old for %d", now, touched, bin, older)
				}
			}
			if bin == ageBins-1 {
				continue
			}
			first := touched >> stepBits[bin] << stepBits[bin]
			if int64(now)-int64(first+halfStep(bin)) >= int64(binEnds[bin]) || a.bin(first) != bin || bin > 0 && touched >= a.starts[bin-1] {
				t.Fatalf("now %d: tick %d is in bin %d", now, touched, bin)
			}
			if stepBits[bin] > stepBits[bin+1] {
				t.Fatalf("a step of bin %d lies in several of the next", bin)
			}
		}
		newest := now
		for bin, start := range a.starts {
			if bin > 0 {
				newest = a.starts[bin-1] - 1
			}
			if a.starts[max(bin-1, 0)] > 0 && newest>>stepBits[bin]-start>>stepBits[bin] >= ringSteps {
				t.Fatalf("now %d: bin %d from tick %d to %d", now, bin, start, newest)
			}
		}
	}
}

// TestGroups: after random steps each group has the blocks of its class and step, whether they are in the
// tier or not, and lists those that may leave in order; all others have none.
func TestGroups(t *testing.T) {
	for seed := range uint64(2) {
		w := newWalk(t, Prefix, 4<<20, seed)
		for step := range 30_000 {
			if w.step(); step%1000 == 0 {
				checkGroups(t, w.policy.(*prefix))
			}
		}
	}
}

func checkGroups(t *testing.T, p *prefix) {
	t.Helper()
	l := &p.tier
	weights, listed := map[place]uint64{}, map[Node]bool{}
	count := func(e *history) {
		if e.class != unaged {
			weights[l.placeOf(e)] += e.share()
		}
	}
	for i := range p.known.all.made {
		if e := p.known.at(i); e.touches > 0 {
			count(e)
		}
	}
	for class := range l.rings {
		for bin := range uint8(ageBins) {
			for step, number := range l.rings[class][bin] {
				at := place{uint16(class), bin, uint8(step)}
				if l.cells[at.cell()].listed>>step&1 == 1 != (number > 0 && !l.group(at).empty()) {
					t.Fatalf("%+v: the cell's bit is wrong", at)
				}
				if number > 0 {
					listGroup(t, l, at, listed)
				}
			}
		}
	}
	for n := range Node(l.blocks.made) {
		b := l.at(n)
		if !b.resident {
			continue
		}
		count(&b.history)
		if b.class != unaged && (b.back != outside) != listed[n] || b.holds == 0 && b.back == outside {
			t.Fatalf("block %d: %+v, listed %v", n, b, listed[n])
		}
	}
	for class := range l.rings {
		for bin := range uint8(ageBins) {
			for step, number := range l.rings[class][bin] {
				if at := (place{uint16(class), bin, uint8(step)}); number > 0 && l.group(at).weight != weights[at] || number == 0 && weights[at] > 0 {
					t.Fatalf("%+v weighs otherwise than its blocks: %d", at, weights[at])
				}
			}
		}
	}
}

// listGroup checks the queue of a group, and lists its blocks.
func listGroup(t *testing.T, l *leaves, at place, listed map[Node]bool) {
	t.Helper()
	list := func(n Node) {
		if l.placeOf(&l.at(n).history) != at || listed[n] {
			t.Fatalf("block %d is in the group of %+v", n, at)
		}
		listed[n] = true
	}
	g, before := l.group(at), NoNode
	for n := g.oldest; n != NoNode; n = l.at(n).next {
		if list(n); l.at(n).back != before || before != NoNode && !l.usedBefore(before, n) {
			t.Fatalf("block %d is out of order", n)
		}
		before = n
	}
	var heap func(n Node)
	heap = func(n Node) {
		for ; n != NoNode; n = l.at(n).next {
			list(n)
			heap(l.at(n).child)
		}
	}
	heap(g.root)
}

// TestGroupsAgeAtOnce: after a long idle time one call brings all blocks to the bins of their ages, with no more work than
// there are groups, and counts each block once in each bin that it leaves.
func TestGroupsAgeAtOnce(t *testing.T) {
	p := newPrefix(0)
	const blocks, apart = 20_000, 500 * time.Microsecond
	for i := range uint64(blocks) {
		p.Insert(time.Duration(i)*apart, Meta{Fingerprint: i, Size: 1, Depth: uint32(i % 4)})
	}
	if n := p.tier.groups.len(); n > blocks/20 {
		t.Errorf("%d groups of %d blocks", n, blocks)
	}
	p.Access(&Request{Now: 24 * time.Hour, Hits: 1, Chain: []Ref{{Fingerprint: 1 << 40, Node: NoNode}}})
	if n := p.tier.groups.len(); n > 3*len(p.learned.classes)+1 {
		t.Errorf("%d groups a day later", n)
	}
	checkGroups(t, p)
	for _, l := range p.learned.classes {
		l.learn()
	}
	all, bin := p.learned.levels[0][0], p.tier.ages.bin(0)
	const weight = blocks / 4 * (1 + 1./2 + 1./3 + 1./4)
	for i, got := range all.exposed {
		if want := weight; i < int(bin) && math.Abs(got/want-1) > 1e-6 || i >= int(bin) && got > 0 {
			t.Errorf("bin %d: %g blocks counted, want %g up to bin %d", i, got, want, bin)
		}
	}
}

// TestInnerBlocksAreInNoList: what a chain that is stored leaves behind is its last block, so that no search for a victim
// has to pass over the others.
func TestInnerBlocksAreInNoList(t *testing.T) {
	p := newPrefix(0)
	var last Node
	for i := range uint64(1000) {
		n := p.Insert(time.Second, Meta{Fingerprint: i, Size: 1, Depth: uint32(i)})
		if i > 0 {
			p.Hold(last)
		}
		last = n
	}
	for n := range last {
		if p.tier.at(n).back != outside {
			t.Fatalf("block %d is listed, and held by its child", n)
		}
	}
	if n, ok := p.Victim(); !ok || n != last {
		t.Errorf("victim %d, want %d", n, last)
	}
}

// TestGhostsOfOneName: of two blocks with the same fingerprint the last that left is remembered.
func TestGhostsOfOneName(t *testing.T) {
	p := newPrefix(0)
	first, second := p.Insert(0, Meta{Fingerprint: 7, Size: 1}), p.Insert(0, Meta{Fingerprint: 7, Size: 1, Depth: 20})
	p.Insert(0, Meta{Fingerprint: 8, Size: 1 << 30})
	p.Remove(first, true)
	p.Remove(second, true)
	checkGroups(t, p)
	if p.known.len() != 1 || p.known.at(p.known.find(7)).length != 21 {
		t.Errorf("%d ghosts, the one of 7: %+v", p.known.len(), p.known.at(p.known.find(7)))
	}
}
