package policy

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// stream is a tier in which conversations take turns. Each turn asks for the chain so far and
// some blocks more, and stores what was missing; after some turns another conversation begins
// in its place. Twice as many blocks are asked for as fit.
type stream struct {
	tb      testing.TB
	policy  Policy
	blocks  int
	talks   []talk
	owner   []int // talk, by node
	request Request
	chain   []Ref // of the request
	turn    int
	now     time.Duration
	events  int // calls of the policy, for each block of a request where that has several
}

// talk is a conversation.
type talk struct {
	first  uint64 // fingerprint
	length int    // blocks
	nodes  []Node // those in the tier
}

const (
	streamBlock = 256 << 10
	streamTurn  = 8 // blocks that a turn adds
	streamTalk  = 64
)

// fill makes a tier of so many blocks, full.
func fill(tb testing.TB, name string, blocks int) *stream {
	tb.Helper()
	s := &stream{tb: tb, policy: must(tb, name, int64(blocks)*streamBlock), blocks: blocks}
	s.talks = make([]talk, 4*blocks/streamTalk)
	for i := range s.talks {
		s.talks[i] = talk{first: uint64(i) << 32, nodes: make([]Node, 0, streamTalk), length: i % 8 * streamTurn}
	}
	for s.policy.Len() < blocks {
		s.serve()
	}
	return s
}

// serve serves a turn.
func (s *stream) serve() {
	s.turn = (s.turn + 1) % len(s.talks)
	t := &s.talks[s.turn]
	s.now += 20 * time.Millisecond
	if t.length == streamTalk {
		for len(t.nodes) > 0 {
			s.remove(t, false)
		}
		t.first, t.length = t.first+streamTalk, 0
	}
	t.length += streamTurn
	s.chain = s.chain[:0]
	for i := range t.length {
		n := NoNode
		if i < len(t.nodes) {
			n = t.nodes[i]
		}
		s.chain = append(s.chain, Ref{Fingerprint: t.first + uint64(i), Size: streamBlock, Node: n})
	}
	s.request = Request{Now: s.now, Hits: t.length, Chain: s.chain}
	s.policy.Access(&s.request)
	if found := len(t.nodes); found > 0 {
		s.policy.Hold(t.nodes[found-1])
	}
	fresh := s.chain[len(t.nodes):]
	for i := range fresh {
		s.insert(t, &fresh[i])
	}
	s.policy.Release(t.nodes[t.length-1])
	s.request = Request{Now: s.now, Chain: fresh}
	s.policy.Access(&s.request)
	s.events += t.length + len(fresh) + 2
}

// insert stores a block behind those of a talk, the last of which it takes a hold from.
func (s *stream) insert(t *talk, ref *Ref) {
	for s.policy.Len() >= s.blocks {
		n, ok := s.policy.Victim()
		if !ok {
			s.tb.Fatal("no victim")
		}
		of := &s.talks[s.owner[n]]
		if n != of.nodes[len(of.nodes)-1] {
			s.tb.Fatalf("victim %d has children", n)
		}
		s.remove(of, true)
		s.events++
	}
	ref.Node = s.policy.Insert(s.now, Meta{Fingerprint: ref.Fingerprint, Size: streamBlock, Depth: uint32(len(t.nodes)), Refs: 1})
	s.policy.Hold(ref.Node)
	for int(ref.Node) >= len(s.owner) {
		s.owner = append(s.owner, 0)
	}
	s.owner[ref.Node] = s.turn
	t.nodes = append(t.nodes, ref.Node) // the hold of the one before it is the child's from here on
	s.events += 2
}

// remove takes out the last block of a talk.
func (s *stream) remove(t *talk, evicted bool) {
	last := len(t.nodes) - 1
	s.policy.Remove(t.nodes[last], evicted)
	if t.nodes = t.nodes[:last]; last > 0 {
		s.policy.Release(t.nodes[last-1])
	}
	s.events += 2
}

// What a turn of a conversation costs, for each call of a policy, and each block of its
// requests.
func BenchmarkServe(b *testing.B) {
	for _, name := range AllNames() {
		for _, blocks := range []int{100_000, 10_000_000} {
			b.Run(fmt.Sprintf("%s/%d", name, blocks), func(b *testing.B) {
				if testing.Short() && blocks > 1_000_000 {
					b.Skip("takes gigabytes")
				}
				s := fill(b, name, blocks)
				s.events = 0
				b.ReportAllocs()
				began := processorTime()
				for b.Loop() {
					s.serve()
				}
				b.ReportMetric(float64(processorTime()-began)/float64(s.events), "cpu-ns/event")
			})
		}
	}
}

// What a request of one block costs where very many classes were seen.
func BenchmarkOneBlock(b *testing.B) {
	const blocks, classes = 10_000, 627
	p := newPrefix(blocks * streamBlock)
	nodes := make([]Node, blocks)
	for i := range nodes {
		nodes[i] = p.Insert(0, Meta{Fingerprint: uint64(i), Size: streamBlock})
	}
	seen(p, classes)
	chain, now := make([]Ref, 1), time.Duration(0)
	for i := uint64(0); b.Loop(); i++ {
		at := i * 7919 % blocks
		now += time.Millisecond
		chain[0] = Ref{Fingerprint: at, Node: nodes[at]}
		p.Access(&Request{Now: now, Hits: 1, Chain: chain})
	}
}

// What a request of one block of very many costs, each as likely as any other: nearly all blocks
// have long been idle, and grow through many bins of ages before they are used. A call is an event: that
// of a request, and where one block in eight is missing, those that replace it.
func BenchmarkOneOfMany(b *testing.B) {
	for _, blocks := range []int{100_000, 10_000_000} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			if testing.Short() && blocks > 1_000_000 {
				b.Skip("takes gigabytes")
			}
			o := newOneOfMany(b, blocks)
			for range blocks { // until they are as old as they get
				o.serve()
			}
			o.events = 0
			b.ReportAllocs()
			began := processorTime()
			for b.Loop() {
				o.serve()
			}
			b.ReportMetric(float64(processorTime()-began)/float64(o.events), "cpu-ns/event")
		})
	}
}

// processorTime is what this process has used, in nanoseconds: others may be at work beside a benchmark.
func processorTime() int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// oneOfMany is a full tier of blocks without parents, and others that it has no room for.
type oneOfMany struct {
	policy Policy
	nodes  []Node // by fingerprint
	prints []uint64
	rng    *rand.Rand
	now    time.Duration
	chain  []Ref
	events int
}

func newOneOfMany(b *testing.B, blocks int) *oneOfMany {
	o := &oneOfMany{
		policy: must(b, Prefix, int64(blocks)*streamBlock), nodes: make([]Node, blocks+blocks/7), prints: make([]uint64, blocks),
		rng: rand.New(rand.NewPCG(1, 29)), chain: make([]Ref, 1),
	}
	for i := range o.nodes {
		o.nodes[i] = NoNode
		if i < blocks {
			o.insert(uint64(i))
		}
	}
	return o
}

func (o *oneOfMany) insert(print uint64) {
	n := o.policy.Insert(o.now, Meta{Fingerprint: print, Size: streamBlock, Refs: 1})
	o.nodes[print], o.prints[n] = n, print
	o.events++
}

func (o *oneOfMany) serve() {
	o.now += 100 * time.Microsecond
	print := o.rng.Uint64N(uint64(len(o.nodes)))
	o.chain[0] = Ref{Fingerprint: print, Size: streamBlock, Node: o.nodes[print]}
	o.policy.Access(&Request{Now: o.now, Hits: 1, Chain: o.chain})
	o.events++
	if o.nodes[print] != NoNode {
		return
	}
	victim, _ := o.policy.Victim()
	o.policy.Remove(victim, true)
	o.nodes[o.prints[victim]] = NoNode
	o.events += 2
	o.insert(print)
}

// seen makes classes until there are so many.
func seen(p *prefix, classes int) {
	for c := class(0); len(p.learned.classes) < classes; c += 7 {
		p.sort(&history{}, c)
	}
}
