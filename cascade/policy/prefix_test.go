package policy

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestPrefixVictims: after each of many random steps the victim is that of a search over all
// blocks, each in the bin of its age, to within a step.
func TestPrefixVictims(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 100_000
	}
	for seed, capacity := range []int64{1 << 20, 8 << 20} {
		w := newWalk(t, Prefix, capacity, uint64(seed))
		p := w.policy.(*prefix)
		for step := range steps / 2 {
			got, ok := w.step()
			if want, wantOK := p.search(w); got != want || ok != wantOK {
				t.Fatalf("capacity %d, step %d: victim %d %v, a search finds %d %v", capacity, step, got, ok, want, wantOK)
			}
		}
		if len(p.learned.classes) < 50 || p.known.len() == 0 {
			t.Errorf("capacity %d: %d classes, %d ghosts: the walk is too small", capacity, len(p.learned.classes), p.known.len())
		}
	}
}

// search finds the victim without heaps: the block of the least worth, then of the oldest bin,
// then of the first class, then used longest ago, then of the least number. Fresh ones leave last,
// by age alone.
func (p *prefix) search(w *walk) (victim Node, ok bool) {
	var least [6]float64
	for _, b := range w.live {
		if b.children > 0 || b.holds > 0 {
			continue
		}
		e := p.tier.at(b.node)
		worth, bin, class := float64(-1), 0, 0
		if e.class != unaged {
			for bin < ageBins-1 && int(p.tier.ages.now-e.touched>>stepBits[bin]<<stepBits[bin])-int(halfStep(uint8(bin))) >= int(binEnds[bin]) {
				bin++
			}
			worth, class = float64(p.learned.indexes[e.class][bin]), int(e.class)
			if bin < int(p.tier.fresh) {
				worth, class = math.MaxFloat64, 0
			}
		}
		order := [6]float64{worth, -float64(bin), float64(class), float64(e.touched), float64(e.order), float64(b.node)}
		if !ok || less(order, least) {
			victim, least, ok = b.node, order, true
		}
	}
	return victim, ok
}

func less(a, b [6]float64) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// TestGittins: the index of a bin is the greatest over all times to give up.
func TestGittins(t *testing.T) {
	hazard := [ageBins]float64{0.1, 0.02, 0, 0.3, 0.3, 0.05, 0.01, 0.6}
	for bin := 8; bin < ageBins; bin++ {
		hazard[bin] = float64(bin*bin%7) / 20
	}
	var got [ageBins]float32
	gittins(&hazard, &got)
	for from := range ageBins {
		best, chance, seconds, left := 0.0, 0.0, 0.0, 1.0
		for bin := from; bin < ageBins; bin++ {
			chance += left * hazard[bin]
			seconds += left * binWidths[bin] * (1 - hazard[bin]/2)
			left *= 1 - hazard[bin]
			best = max(best, chance/seconds)
		}
		if diff := float64(got[from])/best - 1; diff > 1e-6 || diff < -1e-6 {
			t.Errorf("bin %d: %g, want %g", from, got[from], best)
		}
	}
}

// TestPrefixLearnsThinkTime: blocks that are asked for anew a minute after each use outlast
// blocks that never are, though those are younger.
func TestPrefixLearnsThinkTime(t *testing.T) {
	p := must(t, Prefix, 0)
	nodes := map[uint64]Node{}
	ask := func(now time.Duration, first uint64, blocks int) {
		r := Request{Now: now, Hits: blocks}
		for i := range uint64(blocks) {
			n, ok := nodes[first+i]
			if !ok {
				n = NoNode
			}
			r.Chain = append(r.Chain, Ref{Fingerprint: first + i, Node: n})
		}
		p.Access(&r)
		for _, ref := range r.Chain {
			if ref.Node == NoNode {
				nodes[ref.Fingerprint] = p.Insert(now, Meta{Fingerprint: ref.Fingerprint, Size: 1})
			}
		}
	}
	const returning, single = 1 << 40, 1 << 50 // requests of 20 blocks come twice, of one block never
	for second := range uint64(2000) {
		now := time.Duration(second) * time.Second
		ask(now, returning+second*100, 20)
		if second >= 60 {
			ask(now, returning+(second-60)*100, 20)
		}
		ask(now, single+second, 1)
	}
	order := map[Node]int{}
	for p.Len() > 0 {
		n, _ := p.Victim()
		order[n] = p.Len()
		p.Remove(n, true)
	}
	later, sooner := nodes[returning+1970*100+3], nodes[single+1990]
	if order[later] > order[sooner] {
		t.Errorf("a block that returns in 30 seconds leaves when %d are left, one that does not when %d are", order[later], order[sooner])
	}
}

// TestPrefixIsLRUWhileNothingIsLearned: without a reuse the order is that of the last uses,
// within a request tail first, however close in time they are.
func TestPrefixIsLRUWhileNothingIsLearned(t *testing.T) {
	p := must(t, Prefix, 0)
	var want []Node
	for i := range uint64(5000) {
		now := time.Duration(i/1000) * time.Minute
		n := p.Insert(now, Meta{Fingerprint: i, Size: 1})
		want = append(want, n)
		p.Access(&Request{Now: now, Chain: []Ref{{Fingerprint: i, Node: n}}})
		if i%7 == 3 { // its node is used again by one that is younger
			p.Remove(want[0], true)
			want = want[1:]
		}
	}
	for i, n := range want {
		if got, ok := p.Victim(); !ok || got != n {
			t.Fatalf("%d left: victim %d, want %d", i, got, n)
		}
		p.Remove(n, true)
	}
	var r Request
	for i := range uint64(9) {
		r.Chain = append(r.Chain, Ref{Fingerprint: i, Node: p.Insert(0, Meta{Fingerprint: 6000 + i, Size: 1})})
	}
	r.Now, r.Hits = time.Hour, len(r.Chain)
	p.Access(&r)
	for at := len(r.Chain) - 1; at >= 0; at-- {
		n, _ := p.Victim()
		if p.Remove(n, true); n != r.Chain[at].Node && at < len(r.Chain)-1 {
			t.Errorf("victim %d, want %d", n, r.Chain[at].Node)
		}
	}
}

// TestCoarse: sizes are rounded down by less than one part in a thousand.
func TestCoarse(t *testing.T) {
	for size := int64(1); size < 1<<42; size += 1 + size/3 {
		if got := coarseOf(size).bytes(); got > size || size-got > size/1000 {
			t.Errorf("%d bytes: %d", size, got)
		}
	}
	if coarseOf(0).bytes() != 0 || coarseOf(-1).bytes() != 0 {
		t.Error("nothing takes bytes")
	}
}

// TestPrefixRefusesNothingWithRoom: a block is let in that the tier has room for, whatever its size and
// what is known of it.
func TestPrefixRefusesNothingWithRoom(t *testing.T) {
	const size, blocks = 123_457, 100
	p := newPrefix(size * blocks)
	nodes := make([]Node, blocks)
	for i := range nodes {
		nodes[i] = p.Insert(0, Meta{Fingerprint: uint64(i + 1), Size: size})
	}
	for now := time.Duration(0); now < time.Hour; now += time.Minute { // all but the first come back
		for i, n := range nodes[1:] {
			p.Access(&Request{Now: now, Hits: 1, Chain: []Ref{{Fingerprint: uint64(i + 2), Size: size, Node: n}}})
		}
	}
	m := Meta{Fingerprint: 1, Size: size, Elsewhere: true}
	p.Remove(nodes[0], true)
	if !p.Admit(time.Hour, m) {
		t.Error("refused with room for it")
	}
	p.Insert(time.Hour, Meta{Fingerprint: 1000, Size: size})
	if p.Admit(time.Hour, m) {
		t.Error("let in without room, though it is worth least")
	}
	if m.Elsewhere = false; !p.Admit(time.Hour, m) {
		t.Error("a put is refused")
	}
}

// TestPrefixKeepsWhatIsFresh: of a chain that is stored block by block in a full tier none leaves for
// the next, although what is older comes back sooner, and is worth more.
func TestPrefixKeepsWhatIsFresh(t *testing.T) {
	w := newFlatTier(t, Prefix, 600) // half of what comes in a minute
	for second := range int64(500) {
		for _, first := range []int64{second, second - 60} { // each chain comes twice
			if r := (request{Timestamp: 1000 * second}); first >= 0 {
				for i := range int64(20) {
					r.Blocks = append(r.Blocks, uint64(1000*first+i))
				}
				w.serve(r)
			}
		}
	}
	now := 500 * time.Second
	var stored []Ref
	for i := range uint64(20) {
		if !w.makeRoom() {
			t.Fatal("no room")
		}
		for at, ref := range stored {
			if _, ok := w.block[ref.Node]; !ok {
				t.Fatalf("block %d left for block %d", at, i)
			}
		}
		m := Meta{Fingerprint: 1_000_000 + i, Size: flatBlock, Depth: uint32(i), Refs: 1}
		n := w.put(now, m, stored)
		w.policy.Release(n)
		stored = append(stored, Ref{Fingerprint: m.Fingerprint, Size: flatBlock, Node: n})
		now += 20 * time.Millisecond
	}
}

// TestPrefixInATierThatTurnsOverAtOnce: where nothing is older than a second it is LRU, and what comes
// up is let in.
func TestPrefixInATierThatTurnsOverAtOnce(t *testing.T) {
	const blocks = 50
	prefix, lru := newFlatTier(t, Prefix, blocks), newFlatTier(t, LRU, blocks)
	for i := range uint64(1000) {
		r := request{Timestamp: int64(i / 10), Blocks: []uint64{i % 7 * 1000, i%7*1000 + 1 + i%13}}
		if got, want := prefix.serve(r), lru.serve(r); got != want {
			t.Fatalf("request %d hits %d blocks, with lru %d", i, got, want)
		}
	}
}

// TestPrefixOfAnEmptiedTier: a request costs no more after very many blocks came and went.
func TestPrefixOfAnEmptiedTier(t *testing.T) {
	p := must(t, Prefix, 0).(*prefix)
	var nodes []Node
	for i := range uint64(10_000) {
		nodes = append(nodes, p.Insert(0, Meta{Fingerprint: i + 1, Size: 1}))
	}
	for _, n := range nodes {
		p.Remove(n, true)
	}
	for i := range uint64(100) {
		p.Access(&Request{Now: time.Second, Hits: 1, Chain: []Ref{{Fingerprint: 1<<40 + i, Node: NoNode}}})
	}
	if made := p.known.all.made; made > 100 || p.known.len() > 1 {
		t.Errorf("%d numbers are in use, and %d ghosts", made, p.known.len())
	}
}

// TestMostGhosts: ghosts of a small tier are many times its blocks, those of a large one take no
// more than its blocks.
func TestMostGhosts(t *testing.T) {
	for _, x := range []struct {
		blocks int
		bytes  int64
		want   int
	}{
		{0, 1 << 40, 0},
		{1000, 1 << 40, 16_000},
		{1000, 64_000_000, 10_000},
		{100_000, 1 << 50, manyGhosts},
		{10_000_000, 1 << 50, 20_000_000},
	} {
		if got := mostGhosts(x.blocks, x.bytes); got != x.want {
			t.Errorf("%d blocks in %d bytes: %d ghosts, want %d", x.blocks, x.bytes, got, x.want)
		}
	}
}

// TestPrefixDeepens: a block that no request has asked for belongs to a request as long as its chain up to
// it, of which the policy may learn later. What a request has shown counts.
func TestPrefixDeepens(t *testing.T) {
	p := must(t, Prefix, 0).(*prefix)
	length := func(n Node) string {
		e, ok := p.Explain(0, n)
		if !ok {
			t.Fatalf("node %d is not there", n)
		}
		return e.Class[strings.LastIndex(e.Class, "; ")+2:]
	}
	meta := func(print uint64) Meta { return Meta{Fingerprint: print, Size: 1 << 20} }
	put, asked := p.Insert(0, meta(1)), p.Insert(0, meta(2))
	chain := []Ref{{Fingerprint: 2, Node: asked}}
	for i := range uint64(8) {
		chain = append(chain, Ref{Fingerprint: 10 + i, Node: NoNode})
	}
	p.Access(&Request{Hits: len(chain), Chain: chain})
	missed, old := p.Insert(0, meta(15)), p.Insert(0, Meta{Fingerprint: 4, Size: 1, Old: true})
	for n, depth := range map[Node]uint32{put: 40, asked: 40, missed: 6, old: 40} {
		p.Update(n, Meta{Depth: depth})
		p.Update(n, Meta{Depth: 2}) // another name of the same bytes, earlier in a chain
	}
	p.Access(&Request{Chain: []Ref{{Fingerprint: 4, Node: old}}})
	for n, want := range map[Node]string{
		put: "request of 32-63 blocks", asked: "request of 8-15 blocks", missed: "request of 8-15 blocks", old: "request of 32-63 blocks",
	} {
		if got := length(n); got != want {
			t.Errorf("node %d: %s, want %s", n, got, want)
		}
	}
}

// TestPrefixEstimatesByBlocks: each class is estimated once in so many requests, but short requests
// cost no more estimates than one for some blocks, however many classes there are.
func TestPrefixEstimatesByBlocks(t *testing.T) {
	const classes, requests = 627, 10 * estimateRounds
	for blocks, want := range map[int]int{1: requests / blocksPerEstimate, 10: requests * 10 / blocksPerEstimate, 100: classes * 10} {
		p := must(t, Prefix, 0).(*prefix)
		seen(p, classes)
		estimates := map[uint16]int{}
		for range requests {
			for _, l := range p.learned.classes {
				l.seen = 1
			}
			p.learned.estimateSome(blocks, func(n uint16, _ *[ageBins]float32) { estimates[n]++ })
		}
		total, least, most := 0, requests, 0
		for n := range uint16(classes) {
			total, least, most = total+estimates[n], min(least, estimates[n]), max(most, estimates[n])
		}
		if total > want*11/10 || total < want*9/10 || most > least+1 {
			t.Errorf("requests of %d blocks: %d estimates, %d to %d of a class, want about %d", blocks, total, least, most, want)
		}
	}
	p := must(t, Prefix, 0).(*prefix)
	seen(p, classes)
	burst := 0
	for range requests {
		p.learned.estimateSome(1000, func(uint16, *[ageBins]float32) {})
	}
	for range 10 * requests {
		for _, l := range p.learned.classes {
			l.seen = 1
		}
		p.learned.estimateSome(1, func(uint16, *[ageBins]float32) { burst++ })
	}
	if most := classes + 10*requests/blocksPerEstimate; burst > most {
		t.Errorf("%d estimates for %d requests of one block after long ones, want %d at most", burst, 10*requests, most)
	}
}

// TestPrefixInATierThatTurnsOverInASecond: what is learned counts there too. Each chain comes twice, two
// seconds apart, when LRU has lost it.
func TestPrefixInATierThatTurnsOverInASecond(t *testing.T) {
	const blocks, every, apart, steps = 400, 20, 100, 2000 // milliseconds, steps
	hits := func(name string) (n int) {
		w := newFlatTier(t, name, blocks)
		for step := range int64(steps) {
			for _, first := range []int64{step, step - apart} {
				if r := (request{Timestamp: every * step}); first >= 0 {
					for i := range int64(10) {
						r.Blocks = append(r.Blocks, uint64(1000*first+i))
					}
					n += w.serve(r)
				}
			}
		}
		return n
	}
	if lru, got := hits(LRU), hits(Prefix); lru > 0 || got < 10*steps/8 {
		t.Errorf("%d hits of %d that could be, %d with lru", got, 10*steps, lru)
	}
}
