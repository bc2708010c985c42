package policy

import (
	"strings"
	"testing"
	"time"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// explains: what Explain reports to leave first does leave first, and before each block as much
// as it reports.
func explains(t *testing.T, name string) {
	if _, ok := must(t, name, 1).(Explainer); !ok {
		return
	}
	drained := 0
	for seed := range uint64(8) {
		w := newWalk(t, name, 8<<20, seed)
		for range 1000 + 500*seed {
			n, ok := w.step()
			e, known := w.policy.(Explainer).Explain(w.now, n)
			if ok && (!known || e.Holds > 0 || e.Blocks > 0 || e.Bytes > 0) {
				t.Fatalf("victim %d: %+v", n, e)
			}
		}
		if w.used > w.capacity { // what is held does not fit
			continue
		}
		drained++
		explained := map[Node]Explanation{}
		for _, b := range w.live {
			e, ok := w.policy.(Explainer).Explain(w.now, b.node)
			if !ok || e.Holds != b.holds+b.children || e.Sampled {
				t.Fatalf("block %d with %d holds and %d children: %+v, %v", b.node, b.holds, b.children, e, ok)
			}
			explained[b.node] = e
		}
		var bytes int64
		for blocks := int64(0); ; blocks++ {
			n, ok := w.policy.Victim()
			if !ok {
				break
			}
			if e := explained[n]; e.Blocks != blocks || e.Bytes != bytes || e.Holds > 0 {
				t.Fatalf("%d left after %d blocks of %d bytes: %+v", n, blocks, bytes, e)
			}
			w.policy.Remove(n, true)
			bytes += sizeIn(w.policy, w.byNode[n].meta.Size)
		}
	}
	if drained < 4 {
		t.Errorf("only %d tiers were drained", drained)
	}
}

// sizeIn is a size as a policy keeps it.
func sizeIn(p Policy, size int64) int64 {
	if _, ok := p.(*prefix); ok {
		return coarseOf(size).bytes()
	}
	return size
}

// explainsAsIs: a policy that is asked to explain decides as one that is not.
func explainsAsIs(t *testing.T, name string) {
	a, b := newWalk(t, name, 8<<20, 3), newWalk(t, name, 8<<20, 3)
	for step := range 3_000 {
		if e, ok := a.policy.(Explainer); ok && len(a.live) > 0 {
			if _, ok := e.Explain(a.now, a.live[step%len(a.live)].node); !ok {
				t.Fatal("a block of the tier is not explained")
			}
			e.Recall(a.now, uint64(step))
			if _, ok := e.Explain(a.now, NoNode); ok {
				t.Fatal("no block is explained")
			}
		}
		x, xOK := a.step()
		if y, yOK := b.step(); x != y || xOK != yOK {
			t.Fatalf("step %d: victim %d %v and %d %v of the same events", step, x, xOK, y, yOK)
		}
	}
}

// TestExplainOfMany: of many blocks the figures are estimated, within a few parts in a hundred.
func TestExplainOfMany(t *testing.T) {
	for _, name := range Names() {
		const blocks, size = 5 * explainedBlocks, 1 << 10
		p := must(t, name, blocks*size).(Explainer)
		var nodes []Node
		for i := range uint64(blocks) {
			nodes = append(nodes, p.Insert(0, Meta{Fingerprint: i, Size: size, Refs: 1}))
		}
		e, ok := p.Explain(0, nodes[blocks/4+1])
		if !ok || !e.Sampled || e.Blocks < blocks/4-blocks/50 || e.Blocks > blocks/4+blocks/50 || e.Bytes != e.Blocks*size {
			t.Errorf("%s: %+v of the block after %d", name, e, blocks/4+1)
		}
	}
}

// TestExplainWords: the words for classes are right where their digits say so.
func TestExplainWords(t *testing.T) {
	p := newPrefix(1 << 20)
	for i := range 200 { // to learn from
		p.Access(&Request{Now: ms(i * 5000), Hits: 1, Chain: []Ref{{Fingerprint: 100 + uint64(i%7), Node: NoNode}}})
	}
	const begin = 1_000_000
	chain := []Ref{}
	for i := range uint64(10) {
		chain = append(chain, Ref{Fingerprint: i, Size: 1, Node: p.Insert(ms(begin), Meta{Fingerprint: i, Size: 1, Depth: uint32(i)})})
	}
	for _, seconds := range []int{20, 30} {
		p.Access(&Request{Now: ms(begin + seconds*1000), Hits: 10, Chain: chain})
	}
	p.Access(&Request{Now: ms(begin + 65_000), Hits: 1, Chain: []Ref{{Fingerprint: 99, Node: NoNode}}})
	e, _ := p.Explain(ms(begin+65_000), chain[4].Node)
	if want := "2-3 uses; 8 to 16 s between uses; turn 3; request of 8-15 blocks"; e.Class != want {
		t.Errorf("class %q, want %q", e.Class, want)
	}
	if e.Idle < ms(34_000) || e.Idle > ms(36_000) || e.Worth <= 0 || e.Hazard <= 0 || e.Hazard > 1 {
		t.Errorf("%+v", e)
	}
	p.Access(&Request{Now: ms(begin + 65_000), Chain: chain[:5], Due: 40 * time.Second})
	e, _ = p.Explain(ms(begin+65_000), chain[4].Node)
	if want := "fresh; due after 31.3s to 1m5.8s; turn 3; request of 8-15 blocks"; e.Class != want {
		t.Errorf("class %q, want %q", e.Class, want)
	}
	marked := p.Insert(ms(begin+65_000), Meta{Fingerprint: 77, Size: 1, Prefix: true})
	e, _ = p.Explain(ms(begin+65_000), marked)
	if want := "fresh; 1 use; marked as shared; turn 1; request of 1 block"; e.Class != want {
		t.Errorf("class %q, want %q", e.Class, want)
	}
	if last, _ := p.Explain(ms(begin+65_000), chain[9].Node); !strings.Contains(last.Class, "last block of its request") {
		t.Errorf("the last one: %+v", last)
	}
	p.Remove(chain[9].Node, true)
	if gone, ok := p.Recall(ms(begin+65_000), 9); !ok || gone.Idle < ms(34_000) {
		t.Errorf("of a block that has left: %+v %v", gone, ok)
	}
	for c := range classesAt(classLevels - 1) {
		if words := class(c).String(); strings.Count(words, ";") < 2 || strings.Contains(words, "turn ;") {
			turn := c / lengthDigits % turnDigits
			if c >= dueDigit*below[1] {
				turn = c/below[1] - dueDigit
			}
			if turn != turnDigits-2 { // no class has that
				t.Fatalf("class %d: %q", c, words)
			}
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	for _, name := range []string{Prefix, S3FIFO} {
		b.Run(name, func(b *testing.B) {
			p := must(b, name, 0).(Explainer)
			for i := range uint64(1_000_000) {
				p.Insert(ms(int(i/100)), Meta{Fingerprint: i, Size: 1 << 20})
			}
			for b.Loop() {
				p.Explain(0, 500_000)
			}
		})
	}
}
