package policy

import (
	"testing"
	"time"
)

// leavesLast reports which of two blocks leaves later when a tier is drained.
func leavesLast(t *testing.T, p Policy, a, b Node) Node {
	t.Helper()
	last := NoNode
	for p.Len() > 0 {
		n, ok := p.Victim()
		if !ok {
			t.Fatal("no victim")
		}
		p.Remove(n, true)
		if n == a || n == b {
			last = n
		}
	}
	return last
}

// hinted drives a policy with requests of which every second comes back once, a minute later. They
// are declared to come back so, or not to, as honest says of each. It ends when the last ones of both kinds are half a minute old.
func hinted(t *testing.T, p Policy, honest func(i uint64) bool) (returning, single Node) {
	t.Helper()
	const seconds, size = 4000, 1 << 20
	nodes := map[uint64]Node{}
	ask := func(now time.Duration, print uint64, due time.Duration) {
		n, ok := nodes[print]
		if !ok {
			n = NoNode
		}
		chain := []Ref{{Fingerprint: print, Size: size, Node: n}, {Fingerprint: print + 1, Size: size, Node: NoNode}} // one that is not whole is last
		p.Access(&Request{Now: now, Hits: 2, Chain: chain, Due: due})
		if !ok {
			nodes[print] = p.Insert(now, Meta{Fingerprint: print, Size: size})
		}
	}
	comesBack := func(i uint64) bool { return i%2 == 0 }
	for second := range uint64(seconds) {
		now := time.Duration(second) * time.Second
		due := time.Duration(0)
		if comesBack(second) == honest(second) {
			due = time.Minute
		}
		ask(now, 10*second+10, due)
		if second >= 60 && comesBack(second-60) {
			ask(now, 10*(second-60)+10, 0)
		}
	}
	return nodes[10*(seconds-30)+10], nodes[10*(seconds-29)+10]
}

// TestPrefixLearnsWhatHintsAreWorth: of blocks that differ in nothing else those that are declared to be due
// outlast the others where that is true, and leave before them where it always is a lie.
func TestPrefixLearnsWhatHintsAreWorth(t *testing.T) {
	for name, honest := range map[string]func(uint64) bool{
		"true":    func(uint64) bool { return true },
		"untrue":  func(uint64) bool { return false },
		"a third": func(i uint64) bool { return i%6 > 1 },
	} {
		p := must(t, Prefix, 0)
		returning, single := hinted(t, p, honest)
		if leavesLast(t, p, returning, single) != returning {
			t.Errorf("%s: what comes back leaves first", name)
		}
	}
}

// TestHintsAreNoUse: what is declared of blocks counts as no reuse, and begins nothing of those that nobody
// knows; of old ones it is not taken in.
func TestHintsAreNoUse(t *testing.T) {
	p := newPrefix(0)
	known := p.Insert(0, Meta{Fingerprint: 1, Size: 1})
	old := p.Insert(0, Meta{Fingerprint: 2, Size: 1, Old: true})
	before := p.tier.at(known).history
	for range 3 {
		p.Access(&Request{Now: time.Hour, Shared: 9, Due: time.Second, Chain: []Ref{{Fingerprint: 3, Node: NoNode}, {Node: 99}, {Fingerprint: 1, Node: known}}})
	}
	e := &p.tier.at(known).history
	if e.touches != before.touches || e.length != before.length || e.turn != before.turn || e.sessions != before.sessions {
		t.Errorf("%+v became %+v", before, *e)
	}
	if p.known.len() > 0 {
		t.Errorf("%d blocks are known that nobody used", p.known.len())
	}
	for _, l := range p.learned.classes {
		for bin := range ageBins {
			if l.fresh.reused[bin] > 0 {
				t.Errorf("a hint counts as a use in bin %d", bin)
			}
		}
	}
	p.Update(old, Meta{Fingerprint: 2, Prefix: true})
	if n, _ := p.Victim(); n != old {
		t.Errorf("victim %d, want the old one", n)
	}
}

// TestDueIsBounded: however far a declared time is, and for each class, the class there is.
func TestDueIsBounded(t *testing.T) {
	seen := map[class]bool{}
	for c := range classesAt(classLevels - 1) {
		for _, after := range []time.Duration{1, time.Second, time.Minute, time.Hour, 1000 * time.Hour, 1<<63 - 1} {
			d := class(c).due(ticks(after))
			if int(d) >= classesAt(classLevels-1) || int(d) < dueDigit*below[1] || d.due(ticks(after)) != d {
				t.Fatalf("class %d due after %v is %d, and that again %d", c, after, d, d.due(ticks(after)))
			}
			seen[d] = true
		}
	}
	if len(seen) > turnDigits*dueBins*lengthDigits {
		t.Errorf("%d classes", len(seen))
	}
}
