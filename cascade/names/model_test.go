package names

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// model is the slow truth about a graph: what each operation did, and what its
// changes add up to.
type model struct {
	t      *testing.T
	g      *Graph
	now    time.Time
	names  map[string]modelName
	blocks []*Block
	holds  map[*Block]*[Levels]int    // by the changes
	links  map[*Block]map[string]bool // likewise, what tiers have on record
	events map[string]bool            // likewise, what is readable
	queued map[string]bool            // bound or unbound since it was looked at
}

type modelName struct {
	block  *Block
	parent string
	bound  bool
	ends   time.Time
}

// apply sums the changes up, and checks what must be true in between.
func (m *model) apply() {
	for c, ok := m.g.Next(); ok; c, ok = m.g.Next() {
		switch c.Kind {
		case Hold:
			m.holds[c.Block][c.Level] += int(c.N)
		case Release:
			m.holds[c.Block][c.Level] -= int(c.N)
		case Link:
			m.links[c.Block][c.Name.Key()] = true
		case Unlink:
			if c.Record.Seq >= m.g.seq && m.names[c.Record.Key].block != nil {
				m.t.Errorf("the record of %q is withdrawn with the new one", c.Record.Key)
			}
			if now := m.names[c.Record.Key].block; now != nil && now != c.Block && !m.links[now][c.Record.Key] {
				m.t.Errorf("%q is on record nowhere for a moment", c.Record.Key)
			}
			delete(m.links[c.Block], c.Record.Key)
		case Stored:
			m.events[c.Name.Key()] = true
		case Removed:
			delete(m.events, c.Name.Key())
		case Bound, Unbound:
			m.queued[c.Name.Key()] = true
		case Empty:
			if len(c.Block.Names()) != 0 {
				m.t.Errorf("block %v has names and is called empty", c.Block.Owner)
			}
			for level := range Levels {
				if c.Block.In(level) {
					m.leave(c.Block, level) // as the owner does
				}
			}
		}
	}
}

// leave forgets the block's place with what holds it there.
func (m *model) leave(b *Block, level int) {
	m.g.Leave(b, level)
	m.apply()
	m.holds[b][level] = 0
}

// wantHolds counts, for a block's place in a level, the reasons to stay.
func (m *model) wantHolds(b *Block, level int) (n int) {
	for _, child := range m.names {
		if p, ok := m.names[child.parent]; ok && p.block == b && child.block.In(level) {
			n++
		}
	}
	for _, l := range m.g.heldLeases.leases {
		if l.name.block == b && int(l.level) == level {
			n++
		}
	}
	return n
}

func (m *model) visible(key string, depth int) bool {
	n, ok := m.names[key]
	switch {
	case !ok || !n.ends.IsZero() && !m.now.Before(n.ends):
		return false
	case !n.bound:
		return true
	}
	return depth <= MaxBound && n.parent != "" && m.visible(n.parent, depth+1)
}

func (m *model) check() {
	m.t.Helper()
	if err := m.g.Verify(); err != nil {
		m.t.Fatal(err)
	}
	if m.g.Len() != len(m.names) {
		m.t.Fatalf("%d names, want %d", m.g.Len(), len(m.names))
	}
	for key, want := range m.names {
		n := m.g.Get("ns", key)
		if n == nil || n.Block() != want.block || !n.Expires().Equal(want.ends) || n.Bound() != want.bound {
			m.t.Fatalf("%q is not what was put", key)
		}
		if got := m.g.Lookup("ns", key, func() time.Time { return m.now }) != nil; got != m.visible(key, 0) {
			m.t.Errorf("%q visible: %v", key, got)
		}
		if m.events[key] == n.Bound() {
			m.t.Errorf("%q: bound %v, an event says readable: %v", key, n.Bound(), m.events[key])
		}
	}
	for key := range m.events {
		if _, ok := m.names[key]; !ok {
			m.t.Errorf("%q is readable by its events, and gone", key)
		}
	}
	for _, b := range m.blocks {
		if err := b.Verify(); err != nil {
			m.t.Fatal(err)
		}
		for level := range Levels {
			if got, want := m.holds[b][level], m.wantHolds(b, level); b.In(level) && got != want {
				m.t.Errorf("block %v has %d holds in level %d, want %d", b.Owner, got, level, want)
			} else if !b.In(level) && got != 0 {
				m.t.Errorf("block %v is not in level %d and has %d holds there", b.Owner, level, got)
			}
		}
		for _, n := range b.Names() {
			if !m.links[b][n.Key()] {
				m.t.Errorf("%q is not on record with its block", n.Key())
			}
		}
		if len(m.links[b]) != len(b.Names()) {
			m.t.Errorf("block %v: %d names on record, want %d", b.Owner, len(m.links[b]), len(b.Names()))
		}
	}
}

// TestRandomOperations compares a graph with the model after each of many random
// operations on a few names and blocks, so that they meet in every way.
func TestRandomOperations(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := &model{
			t: t, g: New(1), now: begin, names: map[string]modelName{}, holds: map[*Block]*[Levels]int{},
			links: map[*Block]map[string]bool{}, events: map[string]bool{}, queued: map[string]bool{},
		}
		for i := range 8 {
			b := &Block{Info: block.Info{Size: int64(1 + i)}, Owner: fmt.Sprint("B", i)}
			m.blocks, m.holds[b], m.links[b] = append(m.blocks, b), &[Levels]int{}, map[string]bool{}
		}
		for range 1500 {
			m.step(rng)
			if m.check(); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

func (m *model) step(rng *rand.Rand) {
	key, b := fmt.Sprint("n", rng.IntN(12)), m.blocks[rng.IntN(len(m.blocks))]
	n := m.g.Get("ns", key)
	if n != nil && n.Block() == nil {
		n = nil
	}
	m.now = m.now.Add(time.Duration(rng.IntN(3)) * time.Second)
	switch op := rng.IntN(13); {
	case op < 4:
		r := block.Name{Namespace: "ns", Key: key, Prefix: rng.IntN(3) == 0}
		if rng.IntN(3) > 0 {
			if r.Parent = fmt.Sprint("n", rng.IntN(12)); r.Parent == key {
				r.Parent = ""
			}
			r.Bound = r.Parent != "" && rng.IntN(4) == 0
		}
		if rng.IntN(4) == 0 {
			r.Expires = m.now.Add(time.Duration(rng.IntN(20)) * time.Second)
		}
		for level := range Levels { // a put finds its block somewhere
			if !b.In(level) && rng.IntN(2) == 0 {
				m.g.Enter(b, level)
				m.apply()
			}
		}
		was, had := m.names[key]
		m.names[key] = modelName{b, "", r.Bound, r.Expires}
		switch op {
		case 0:
			r.Seq = uint64(m.now.UnixNano())
			n = m.g.Copy(r, b)
		case 1:
			keep := rng.IntN(2) == 0
			if n = m.g.Put(r, keep, b, m.now); keep && had {
				r.Expires = was.ends
			}
		default:
			n = m.g.Put(r, false, b, m.now)
		}
		now := modelName{b, "", r.Bound, r.Expires}
		if n.Parent() != nil { // it may have been refused for a ring
			now.parent = n.Parent().Key()
		}
		m.names[key] = now
	case op == 4 && n != nil:
		m.g.Withdraw(n, m.g.Tick(m.now))
		delete(m.names, key)
	case op == 5 && n != nil:
		to := m.names[key]
		to.block = b
		m.names[key] = to
		m.g.Move(n, b)
		m.apply()
		m.g.HoldLeases(n, 40)
	case op == 6 && n != nil:
		to := m.names[key]
		to.ends = m.now.Add(time.Duration(rng.IntN(20)) * time.Second)
		m.names[key] = to
		m.g.Expire(n, to.ends, m.now)
	case op == 7 && n != nil:
		if l := m.g.Lease(n, fmt.Sprint("o", rng.IntN(4)), m.now.Add(time.Duration(rng.IntN(30))*time.Second)); l != nil {
			m.g.HoldLease(l, 40)
		}
	case op == 8:
		m.g.EndOwner(fmt.Sprint("o", rng.IntN(4)), 1+rng.IntN(3))
		m.g.EndLease(m.now)
	case op == 9:
		if n := m.g.NextExpired(m.now); n != nil {
			m.g.Withdraw(n, m.g.Tick(m.now))
			delete(m.names, n.Key())
		}
	case op == 10:
		if level := rng.IntN(Levels); b.In(level) {
			m.leave(b, level)
		} else {
			m.g.Enter(b, level)
		}
	case op == 12 && n != nil:
		had, parent := m.names[key], fmt.Sprint("n", rng.IntN(12))
		if m.g.Infer(n, parent) != (had.parent == "" && n.Parent() != nil) {
			m.t.Errorf("%q under %q: inferred %v, it was under %q", key, parent, n.Inferred(), had.parent)
		}
		if n.Parent() != nil {
			had.parent = n.Parent().Key()
		}
		m.names[key] = had
	case op == 11 && len(b.Names()) > 0: // all names of a block whose bytes are lost
		for len(b.Names()) > 0 {
			n := b.Names()[len(b.Names())-1]
			delete(m.names, n.Key())
			m.g.Drop(n)
		}
		m.links[b] = map[string]bool{}
	}
	m.apply()
}
