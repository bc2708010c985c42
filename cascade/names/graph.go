package names

import (
	"maps"
	"slices"
	"strings"
	"time"

	"cascadekv/internal/block"
)

// Graph is all names of one rank. It is not safe for concurrent use.
//
// The invariant of holds: in each level, the holds on a block that the changes
// have added up to are, over its names, their children in the level, plus the
// leases that hold it there. So a block with a child in the same level is no
// victim, and eviction leaves no hole in a chain: what comes after one would be of
// no use, for a prefix ends at its first miss.
type Graph struct {
	changes
	spaces map[string]*Space
	first  int // of the levels that leases hold blocks in: slower ones are too

	names      int   // with a block
	bytes      int64 // their cost
	referenced int64 // bytes of their blocks
	own        Own
	seq        uint64

	leases     leaseHeap
	heldLeases leaseHeap
	owned      map[string]*Lease // the newest of each owner
	held       int64             // bytes held by leases
	expiries   expiryHeap
}

// KeepSpaces is how many namespaces a graph keeps though they have no names.
const KeepSpaces = 256

// New returns an empty graph of a rank whose leases hold blocks in the level first, and
// in slower ones.
func New(first int) *Graph {
	return &Graph{
		spaces: map[string]*Space{}, first: first, owned: map[string]*Lease{},
		leases: leaseHeap{which: allLeases}, heldLeases: leaseHeap{which: heldLeases},
	}
}

// Len returns the number of names with a block.
func (g *Graph) Len() int { return g.names }

// Bytes returns about how many bytes of heap the names with a block take.
func (g *Graph) Bytes() int64 { return g.bytes }

// Referenced returns the bytes of the blocks of all names.
func (g *Graph) Referenced() int64 { return g.referenced }

// Own is what a rank's own names come to: those that are no copies of another rank's. In
// the sums over the ranks of a job, names and blocks count once.
type Own struct {
	Referenced int64 // Σ over these names of their block's bytes
	Stored     int64 // Σ over the blocks that they stand for
}

// Own returns what the names that are no copies come to.
func (g *Graph) Own() Own { return g.own }

// Space returns a namespace, nil when there is none.
func (g *Graph) Space(ns string) *Space { return g.spaces[ns] }

// AddSpace returns a namespace, making one when needed.
func (g *Graph) AddSpace(ns string) *Space {
	sp := g.spaces[ns]
	if sp == nil {
		ns = strings.Clone(ns) // it may be a part of a request
		sp = &Space{name: ns, byKey: map[string]*Name{}}
		g.spaces[ns] = sp
	}
	return sp
}

// Spaces returns the names of all namespaces, in no order.
func (g *Graph) Spaces() []string { return slices.Collect(maps.Keys(g.spaces)) }

// SpaceCount returns how many namespaces there are.
func (g *Graph) SpaceCount() int { return len(g.spaces) }

// Get returns a name or placeholder, visible or not; nil when there is neither.
func (g *Graph) Get(ns, key string) *Name {
	sp := g.spaces[ns]
	if sp == nil {
		return nil
	}
	return sp.byKey[key]
}

// Lookup returns a visible name, or nil.
func (g *Graph) Lookup(ns, key string, now func() time.Time) *Name {
	n := g.Get(ns, key)
	if n == nil || !n.Visible(now) {
		return nil
	}
	return n
}

// Tick returns the next sequence number: a hybrid clock (block.Name.Seq).
func (g *Graph) Tick(now time.Time) uint64 {
	g.seq = max(g.seq+1, uint64(now.UnixNano()))
	return g.seq
}

// Observe makes all later ticks greater than a sequence number.
func (g *Graph) Observe(seq uint64) { g.seq = max(g.seq, seq) }

// Heard is Observe of a put stamp of another rank, which may have recorded the put a little later: later
// ticks are greater than that too.
func (g *Graph) Heard(stamp uint64) { g.Observe(stamp + MovedWithin) }

// Put points the name that r describes at b, replacing what it pointed to, as a
// put of now. Parent decides about the depth where it is stored. With keepTTL
// the name expires when what it replaces does.
//
// Whatever instant the process dies at, one of the two versions is on record:
// the new one is written before the old one is withdrawn.
func (g *Graph) Put(r block.Name, keepTTL bool, b *Block, now time.Time) *Name {
	withdrawn := g.Tick(now)
	n := g.rebind(&r, keepTTL, false, b, withdrawn, g.Tick(now))
	n.put = n.record.Seq
	return n
}

// MovedWithin is how many ticks after its put, at most, a name is recorded where it was moved, or where it was
// recorded again. Two puts of a name are as close, 16 µs, only if they are made on two ranks at the same
// time; then either may stay.
const MovedWithin = 1 << 14

// A name that is recorded again is that many ticks younger than what is known of its put, at least and, together, at most.
// A name that is moved is two ticks younger than where it was; its record there may have been withdrawn since.
const (
	reclaimedBy     = 128
	reclaimedSpread = 128
)

// Copy is Put of a copy of another rank's block, with the put stamp r.Seq. It is recorded a tick
// before that, which is no put's: the original hides it wherever both are known, and it hides no
// put of which this rank has not heard. What it replaces is withdrawn as of when that was recorded, and
// if that is as late as the put, the copy is recorded after it.
func (g *Graph) Copy(r block.Name, b *Block) *Name {
	g.Heard(r.Seq)
	put, withdrawn := r.Seq, uint64(0)
	if n := g.Get(r.Namespace, r.Key); n != nil && n.block != nil {
		withdrawn = n.record.Seq
	}
	recorded := put - 1
	if withdrawn >= put {
		recorded = withdrawn + 1
	}
	n := g.rebind(&r, false, true, b, withdrawn, recorded)
	g.Observe(n.record.Seq)
	n.put = put
	return n
}

// Restore points a name at a block that a tier has on record with it.
func (g *Graph) Restore(r block.Name, b *Block) *Name {
	n, was, old := g.displace(&r)
	r.Namespace, r.Key = n.space.name, n.record.Key // one copy of them
	if n.parent != nil {
		r.Parent = n.parent.record.Key
	}
	n.record, n.put, n.copied = r, r.Seq, false
	g.attach(n, b)
	g.displaced(n, was, &old)
	return n
}

// SetCopied records that n, as it is, is recorded by another rank.
func (g *Graph) SetCopied(n *Name) { g.setCopied(n, true) }

// SetOwn undoes SetCopied: n, with its put stamp, is recorded by this rank.
func (g *Graph) SetOwn(n *Name) { g.setCopied(n, false) }

// Reclaim has n, whose record elsewhere may be lost, be recorded by this rank, with its put
// stamp. The record is younger than the one that was lost, and than a withdrawal of that. Other ranks that have copies
// may do so too: the clock decides by how much, for who withdraws one record must not withdraw another.
func (g *Graph) Reclaim(n *Name) {
	g.SetOwn(n)
	g.Raise(n, max(n.record.Seq, n.put)+reclaimedBy+g.seq%(reclaimedSpread/2)*2)
}

// SetPutAsRecorded has n count as put when it was recorded.
func (g *Graph) SetPutAsRecorded(n *Name) { n.put = max(n.put, n.record.Seq) }

// Raise has n be recorded with a sequence number of at least seq, and its put stamp.
func (g *Graph) Raise(n *Name, seq uint64) {
	n.record.Seq = max(n.record.Seq, seq)
	g.Observe(n.record.Seq)
	if !n.record.Expires.IsZero() {
		g.expiries.push(n, g.names)
	}
	g.add(Link, n, n.block)
}

func (g *Graph) setCopied(n *Name, is bool) {
	if n.block != nil {
		g.accountOwn(n, n.block, -1)
	}
	n.copied = is
	if n.block != nil {
		g.accountOwn(n, n.block, 1)
	}
}

func (g *Graph) rebind(r *block.Name, keepTTL, copied bool, b *Block, withdrawn, recorded uint64) *Name {
	n, was, old := g.displace(r)
	r.Namespace, r.Key = n.space.name, n.record.Key
	if was != nil && keepTTL {
		r.Expires = old.Expires
	}
	if n.parent != nil {
		r.Parent = n.parent.record.Key // one copy of it
		if n.parent.block != nil {
			r.Depth = n.parent.record.Depth + 1
		}
	}
	n.record, n.copied = *r, copied
	g.relink(n, b, was, &old, withdrawn, recorded)
	g.displaced(n, was, &old)
	return n
}

// displace takes the name that r describes from the block that it stands for, if any,
// with the record old, and gives it its new parent.
func (g *Graph) displace(r *block.Name) (n *Name, was *Block, old block.Name) {
	n = g.AddSpace(r.Namespace).node(r.Key)
	if was = n.block; was != nil {
		old = n.record
		g.endLeases(n)
		g.detach(n)
		if r.Bound && !old.Bound {
			g.add(Removed, n, was)
		}
	}
	n.setParent(r.Parent)
	if r.Parent != "" && !r.Inferred && !r.Bound {
		n.space.NamesParents = true
	}
	return n, was, old
}

// displaced ends what displace began.
func (g *Graph) displaced(n *Name, was *Block, old *block.Name) {
	if !n.record.Bound && (was != n.block || old.Bound) {
		g.add(Stored, n, n.block)
	}
	if was != nil && len(was.names) == 0 {
		g.add(Empty, nil, was)
	}
}

// relink attaches n to the block to and moves its record there from the block was
// (nil: none), where it is old, with the sequence numbers given. The withdrawal is
// older than the new record, and not than the old one: a tier takes it for one of every record
// that is not younger.
func (g *Graph) relink(n *Name, to, was *Block, old *block.Name, withdrawn, recorded uint64) {
	old.Seq, n.record.Seq = withdrawn, recorded
	g.attach(n, to)
	g.add(Link, n, to)
	if was != nil && was != to {
		g.unlink(was, old)
	}
}

// Move makes n a name of another block with the same bytes. Its leases go with
// it, but none is held. The new record is just younger than the old one, and so not than a
// put elsewhere of which this rank has not heard yet.
func (g *Graph) Move(n *Name, to *Block) {
	g.unholdLeases(n)
	was, old := n.block, n.record
	g.detach(n)
	g.relink(n, to, was, &old, old.Seq+1, old.Seq+2)
	g.Observe(n.record.Seq)
}

// Withdraw ends a name with a block as of a sequence number: its records are
// withdrawn, and so is the node if nothing needs it.
func (g *Graph) Withdraw(n *Name, seq uint64) {
	g.endLeases(n)
	gone := n.record
	gone.Seq = seq
	g.unlink(n.block, &gone)
	g.end(n, true)
}

// Drop ends a name whose block is in no tier any more, and with it all records.
func (g *Graph) Drop(n *Name) {
	g.endLeases(n)
	g.end(n, true)
}

// Retire ends a name that can be read all the same, by what is recorded elsewhere: it is
// not Removed.
func (g *Graph) Retire(n *Name) {
	g.endLeases(n)
	n.away = n.children > 0
	g.end(n, false)
}

// SetAway records that the catalogue has a name that is only a placeholder here, until it
// expires (zero: never): what is bound to it is visible meanwhile.
func (g *Graph) SetAway(ns, key string, expires time.Time) {
	if n := g.Get(ns, key); n != nil && n.block == nil {
		n.away, n.record.Expires = true, expires
	}
}

// SetNowhere undoes SetAway.
func (g *Graph) SetNowhere(ns, key string) {
	if n := g.Get(ns, key); n != nil {
		n.away = false
	}
}

func (g *Graph) end(n *Name, removed bool) {
	b := n.block
	g.detach(n)
	if removed && !n.record.Bound {
		g.add(Removed, n, b)
	}
	g.add(Gone, n, b)
	n.space.delist(n)
	if len(b.names) == 0 {
		g.add(Empty, nil, b)
	}
	n.prune()
	if sp := n.space; len(sp.byKey) == 0 && len(g.spaces) > KeepSpaces && g.spaces[sp.name] == sp {
		delete(g.spaces, sp.name) // and what was counted of it
	}
}

// Expire sets when a name with a block ends, as a put of now; the zero time means
// never.
func (g *Graph) Expire(n *Name, at, now time.Time) {
	n.record.Expires, n.record.Seq = at, g.Tick(now)
	n.put = n.record.Seq
	g.SetOwn(n) // copies of other ranks end when they did: they give way
	if !at.IsZero() {
		g.expiries.push(n, g.names)
	}
	g.add(Link, n, n.block)
	g.add(Renewed, n, n.block)
}

// Infer gives a name with a block that has no parent one that nobody named, and reports
// whether it did. No tier's record changes: it is a hint, which comes again.
func (g *Graph) Infer(n *Name, parent string) bool {
	if n.record.Parent != "" || parent == n.record.Key {
		return false
	}
	n.setParent(parent)
	p, b := n.parent, n.block
	if p == nil { // it would be its own ancestor
		return false
	}
	g.account(n, b, -1)
	b.remove(n)
	n.record.Parent, n.record.Inferred = p.record.Key, true
	if p.block != nil {
		n.record.Depth = p.record.Depth + 1
	}
	b.add(n)
	g.account(n, b, 1)
	g.countStored(n, 1)
	for level := range Levels {
		if b.In(level) {
			g.countChild(n, level, 1)
		}
	}
	return true
}

// NextExpired returns a name that has expired by now, each once; nil for none.
func (g *Graph) NextExpired(now time.Time) *Name { return g.expiries.next(now) }

// attach makes n a name of b.
func (g *Graph) attach(n *Name, b *Block) {
	n.block, n.away = b, false
	b.add(n)
	n.space.enlist(n)
	g.countStored(n, 1)
	g.account(n, b, 1)
	for level := range Levels {
		if b.In(level) {
			g.hold(b, level, n.resident[level])
			g.countChild(n, level, 1)
		}
	}
	if !n.record.Expires.IsZero() {
		g.expiries.push(n, g.names)
	}
	g.add(Bound, n, b)
}

// detach undoes attach. The block stays, even without names; n keeps its place in
// the list, so that no scan passes over a name that only changes its block.
func (g *Graph) detach(n *Name) {
	b := n.block
	for level := range Levels {
		if b.In(level) {
			g.countChild(n, level, -1)
			g.hold(b, level, -n.resident[level])
		}
	}
	n.block = nil
	g.countStored(n, -1)
	b.remove(n)
	g.account(n, b, -1)
	g.add(Unbound, n, b)
}

func (g *Graph) account(n *Name, b *Block, by int64) {
	n.space.referenced += by * b.Info.Size
	g.referenced += by * b.Info.Size
	g.names += int(by)
	g.bytes += by * n.cost()
	g.accountOwn(n, b, by)
}

func (g *Graph) accountOwn(n *Name, b *Block, by int64) {
	if n.copied {
		return
	}
	g.own.Referenced += by * b.Info.Size
	was := b.own
	if b.own += int32(by); was == 0 || b.own == 0 {
		g.own.Stored += by * b.Info.Size
	}
}

// countStored counts n among its parent's children with a block, or no more.
func (g *Graph) countStored(n *Name, by int32) {
	if p := n.parent; p != nil {
		p.addStored(by)
		if p.block != nil {
			g.add(Needed, nil, p.block)
		}
	}
}

// countChild counts n among its parent's children that are in a level, or no
// more.
func (g *Graph) countChild(n *Name, level int, by int32) {
	if p := n.parent; p != nil {
		p.resident[level] += by
		if p.block != nil && p.block.In(level) {
			g.hold(p.block, level, by)
		}
	}
}

// Enter records that b came to a level.
func (g *Graph) Enter(b *Block, level int) {
	b.levels |= 1 << level
	for _, n := range b.names {
		g.hold(b, level, n.resident[level])
	}
	for _, n := range b.names {
		g.countChild(n, level, 1)
	}
	g.moved(b)
}

// Leave records that b leaves a level. What its names held there, and what held
// b there, is released: the owner must not forget b's place before that.
func (g *Graph) Leave(b *Block, level int) {
	for _, n := range b.names {
		g.countChild(n, level, -1)
		for _, l := range n.leases {
			if int(l.level) == level {
				g.unholdLease(l)
			}
		}
	}
	b.levels &^= 1 << level
	g.moved(b)
}

func (g *Graph) moved(b *Block) {
	if len(b.names) > 0 {
		g.add(Moved, nil, b)
	}
}
