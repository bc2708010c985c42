package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	for _, name := range Names() {
		p, err := New(name, 1<<30)
		if err != nil || p.Name() != name || p.Len() != 0 {
			t.Errorf("New(%q) = %v, %v", name, p, err)
		}
		if n, ok := p.Victim(); ok {
			t.Errorf("%s: empty tier has victim %d", name, n)
		}
	}
	if p, err := New("", 0); err != nil || p.Name() != Names()[0] {
		t.Errorf("the default is not the first of Names: %v, %v", p, err)
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := New("mru", 1)
	var unknown *UnknownError
	if !errors.As(err, &unknown) || unknown.Name != "mru" {
		t.Fatalf("unknown policy: %v", err)
	}
	for _, name := range Names() {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
	var capacity *CapacityError
	if _, err := New(LRU, -1); !errors.As(err, &capacity) || capacity.Bytes != -1 {
		t.Errorf("negative capacity: %v", err)
	}
}

// A policy must survive a caller that names blocks it does not have.
func TestUnknownNodesDoNothing(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			p, err := New(name, 100)
			if err != nil {
				t.Fatal(err)
			}
			gone, kept := p.Insert(0, Meta{Size: 1}), p.Insert(0, Meta{Size: 1})
			p.Remove(gone, true)
			for _, n := range []Node{gone, 7, Node(none)} {
				p.Remove(n, true)
				p.Update(n, Meta{Refs: 9})
				p.Hold(n)
				p.Release(n)
				p.Access(requestFor(0, 3, n, kept, n))
			}
			p.Access(requestFor(0, 5))
			p.Release(kept)
			if got, ok := p.Victim(); !ok || got != kept || p.Len() != 1 {
				t.Errorf("victim %d %v of %d blocks, want %d of 1", got, ok, p.Len(), kept)
			}
			p.Hold(kept)
			if _, ok := p.Victim(); ok {
				t.Error("a release without a hold was kept for later")
			}
		})
	}
}

// full returns a policy with n blocks of size 1 in chains, each held by its
// child, and the chains.
func full(tb testing.TB, name string, blocks, length int) (Policy, [][]Node) {
	tb.Helper()
	p, err := New(name, int64(blocks))
	if err != nil {
		tb.Fatal(err)
	}
	chains := make([][]Node, blocks/length)
	for i := range chains {
		for j := range length {
			if j > 0 {
				p.Hold(chains[i][j-1])
			}
			chains[i] = append(chains[i], p.Insert(0, Meta{Size: 1, Refs: 1}))
		}
		p.Access(requestFor(0, 0, chains[i]...))
	}
	return p, chains
}

// turnOver evicts the tail of the oldest chain and grows it again, as a full
// tier does.
func turnOver(tb testing.TB, p Policy, chain []Node) {
	last := len(chain) - 1
	victim, ok := p.Victim()
	if !ok || victim != chain[last] {
		tb.Fatalf("victim %d %v, want the tail %d of the oldest chain", victim, ok, chain[last])
	}
	p.Remove(victim, true)
	p.Release(chain[last-1])
	p.Access(requestFor(0, last, chain[:last]...))
	p.Hold(chain[last-1])
	chain[last] = p.Insert(0, Meta{Size: 1, Refs: 1})
	p.Access(requestFor(0, 0, chain...))
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, name := range Names() {
		p, chains := full(t, name, 1200, 12)
		i := 0
		if got := testing.AllocsPerRun(1000, func() {
			turnOver(t, p, chains[i%len(chains)])
			i++
		}); got != 0 {
			t.Errorf("%s: %v allocations per request", name, got)
		}
		if p.Len() != 1200 {
			t.Errorf("%s: %d blocks, want 1200", name, p.Len())
		}
	}
}

func BenchmarkAccess(b *testing.B) {
	for _, name := range Names() {
		for _, hits := range []int{0, 24} {
			b.Run(fmt.Sprintf("%s/hits=%d", name, hits), func(b *testing.B) {
				p, chains := full(b, name, 1_000_000, 24)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					p.Access(requestFor(0, hits, chains[i*7919%len(chains)]...))
				}
			})
		}
	}
}

// Each round evicts one block of a million and inserts it again.
func BenchmarkTurnOver(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			p, chains := full(b, name, 1_000_000, 24)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				turnOver(b, p, chains[i%len(chains)])
			}
		})
	}
}
