package index

import (
	"context"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/lustre/index/draft"
)

// planner turns entries into the records that say so, reading what is there
// already. One goroutine at a time has one, while it has its turn to change
// the index. It can be used again, with the memory that it has.
type planner struct {
	engine *engine
	reader *reader
	draft  draft.Draft

	rows   map[uint32]*segmentRow // changed ones
	names  map[Key]*named
	blocks map[block.ID]*placed
	batch  int       // which one put is at, from 1
	here   []*placed // its blocks
	order  []*placed // of blocks, so that equal batches make equal files
	named  slab[named]
	placed slab[placed]
	ends   map[Key]uint32 // where runs end
	queue  []queued
	buf    []byte
	val    []byte
}

// named is where a name lies once the batch is committed.
type named struct {
	at     spot
	rec    nameRecord
	found  bool // at and rec are true
	exists bool // found, and the segment of its record is alive
	bare   bool // neither the name nor a run called after it is there
}

// placed is a block once the batch is committed.
type placed struct {
	id      block.ID
	rec     blockRecord
	owner   *named // the name of rec.owner, if this batch made it the owner
	exists  bool   // its segment is alive
	changed bool
	batch   int // the last one that has it here; 0: none of this plan
}

// slab makes zero values many at a time: a million of them one by one are a
// burden to the collector. reset takes all of them back.
type slab[T any] struct {
	some []*[slabSize]T
	used int
}

const slabSize = 128

func (s *slab[T]) next() *T {
	if s.used == len(s.some)*slabSize {
		s.some = append(s.some, new([slabSize]T))
	}
	one := &s.some[s.used/slabSize][s.used%slabSize]
	s.used++
	var zero T
	*one = zero
	return one
}

func (s *slab[T]) reset() { s.used = 0 }

// queued is a name that waits for those above it in its chain.
type queued struct {
	name    *Name
	block   *placed // that of the name's id, if it was at hand
	segment uint32
	batch   int
}

// newPlanner makes one for so many blocks and names with so many bytes of notes,
// or about.
func newPlanner(blocks, names, notes int) *planner {
	p := new(planner)
	p.prepare(blocks, names, notes)
	return p
}

// prepare forgets the last plan, and makes room for one of as much. A planner
// needs it before each use.
func (p *planner) prepare(blocks, names, notes int) {
	if p.rows == nil {
		p.rows, p.ends = map[uint32]*segmentRow{}, map[Key]uint32{}
		p.names, p.blocks = make(map[Key]*named, names), make(map[block.ID]*placed, blocks)
	}
	clear(p.rows)
	clear(p.ends)
	clear(p.names)
	clear(p.blocks)
	p.batch = 0
	p.named.reset()
	p.placed.reset()
	p.order = slices.Grow(p.order[:0], blocks)
	p.queue = slices.Grow(p.queue[:0], names)
	p.draft.Prepare(blocks*64+names*160+notes, blocks+2*names)
}

// change plans with fn and commits the result.
func (x *Index) change(ctx context.Context, p *planner, fn func(p *planner) error) error {
	e, err := x.lock(ctx)
	if err != nil {
		return err
	}
	return e.change(ctx, p, fn)
}

// change is for those who have their turn, and ends it.
func (e *engine) change(ctx context.Context, p *planner, fn func(p *planner) error) error {
	r, ok := e.take()
	if !ok {
		e.unlock()
		return ErrClosed
	}
	err := e.guard(r, func(r *reader) error {
		p.engine, p.reader = e, r
		if err := fn(p); err != nil {
			return err
		}
		return p.finish()
	})
	if err != nil || p.draft.Empty() {
		e.unlock()
		return err
	}
	b, err := p.draft.Batch(e.db)
	if err != nil {
		e.unlock()
		return err
	}
	return e.commit(ctx, b)
}

// putAll adds batches in one step, planned by p.
func (x *Index) putAll(ctx context.Context, p *planner, batches []Batch) error {
	blocks, names, notes, filling := 0, 0, 0, false
	for _, b := range batches {
		if err := b.check(); err != nil {
			return err
		}
		blocks, names = blocks+len(b.Blocks), names+len(b.Names)
		for i := range b.Names {
			notes += len(b.Names[i].Note)
		}
	}
	p.prepare(blocks, names, notes)
	err := x.change(ctx, p, func(p *planner) error {
		filling = p.engine.sieve != nil
		for _, b := range batches {
			if err := p.put(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		x.count.puts.Add(uint64(blocks + names))
		if filling {
			x.count.filled.Add(uint64(blocks + names))
		}
	}
	return err
}

// put plans a batch but for its names, which finish does in the order of their
// depth, so that a parent is in its run before its children come.
func (p *planner) put(b Batch) error {
	number := p.segment(b.Segment, b.Mark, uint64(len(b.Blocks)+len(b.Names)))
	p.batch++
	p.here = p.here[:0]
	for i := range b.Blocks {
		cur, err := p.putBlock(number, &b.Blocks[i], b.Count)
		if err != nil {
			return err
		}
		p.here = append(p.here, cur)
		if b.Behind != nil && cur.batch != p.batch {
			*b.Behind = true
			p.row(number).mark = b.Mark // the other copy may go, and the caller then has these read again
		}
	}
	// Names of a segment mostly come in the order of their blocks.
	here := p.here
	for i := range b.Names {
		q := queued{name: &b.Names[i], segment: number, batch: p.batch}
		if len(here) > 0 && here[0].id == q.name.ID {
			q.block, here = here[0], here[1:]
		}
		p.queue = append(p.queue, q)
	}
	for _, s := range b.Spaces {
		p.buf = appendSpaceKey(p.buf[:0], NamespaceOf(s.Text))
		p.draft.Set(p.buf, appendSpace(nil, s))
	}
	return nil
}

// segment returns the number of a segment, a new one if it has none. The number
// counts from now on: nothing of it is seen before the batch is.
func (p *planner) segment(s Segment, mark, entries uint64) uint32 {
	row, number := p.engine.segments.of(s)
	if number == 0 {
		number = p.engine.segments.next
		p.engine.segments.set(number, row)
	}
	r := p.row(number)
	r.mark = max(r.mark, mark)
	r.entries += entries
	return number
}

// row returns the row of a segment that is alive, to be changed.
func (p *planner) row(number uint32) *segmentRow {
	if p.rows[number] == nil {
		r := *p.engine.segments.row(number)
		p.rows[number] = &r
	}
	return p.rows[number]
}

func (p *planner) putBlock(number uint32, b *Block, counts bool) (*placed, error) {
	cur, err := p.block(b.Info.ID)
	if err != nil {
		return nil, err
	}
	if !counts && (!cur.exists || cur.rec.place.segment != number || cur.rec.place.offset != b.Place.Offset) {
		row := p.row(number)
		row.blocks++
		row.bytes += uint64(b.Info.Size)
	}
	if !counts && cur.exists && p.supersedes(cur.rec.place.segment, number) {
		return cur, nil // the other copy is merged away first
	}
	at := b.Place
	cur.rec.place = place{
		segment: number, offset: at.Offset, size: b.Info.Size,
		stored: at.Stored, crc: b.Info.CRC, storedCRC: at.StoredCRC, codec: at.Codec,
	}
	cur.exists, cur.batch = true, p.batch
	p.touch(cur)
	return cur, nil
}

// supersedes is that of two segments.
func (p *planner) supersedes(a, b uint32) bool {
	return p.engine.segments.row(a).segment.supersedes(p.engine.segments.row(b).segment, p.engine.opt.Rank)
}

// block returns what there is of a block, as of this batch.
func (p *planner) block(id block.ID) (*placed, error) {
	if b := p.blocks[id]; b != nil {
		return b, nil
	}
	b := p.placed.next()
	b.id = id
	p.blocks[id] = b
	if s := p.engine.sieve; s != nil && !s.add(id[:16]) {
		return b, nil
	}
	found := false
	var err error
	b.rec, found, err = p.reader.block(id)
	b.exists = found && p.engine.segments.alive(b.rec.place.segment)
	return b, err
}

// lies reports whether a block, which exists, is at a place.
func (p *planner) lies(b *placed, at *Place) bool {
	return b.rec.place.offset == at.Offset && p.engine.segments.row(b.rec.place.segment).segment == at.Segment
}

func (p *planner) touch(b *placed) {
	if !b.changed {
		b.changed = true
		p.order = append(p.order, b)
	}
}

// name returns what there is of a name, as of this batch.
func (p *planner) name(k Key) (*named, error) {
	if n := p.names[k]; n != nil {
		return n, nil
	}
	n := p.named.next()
	n.bare = true
	p.names[k] = n
	if s := p.engine.sieve; s != nil && !s.add(k[:]) {
		return n, nil
	}
	f, err := p.reader.search(k)
	n.at, n.found, n.bare = f.at, f.found, f.bare
	if err != nil || !n.found {
		return n, err
	}
	n.rec, err = decodeNameRecord(f.value)
	n.exists = p.engine.segments.alive(n.rec.segment)
	return n, err
}

// putName plans one name.
func (p *planner) putName(q *queued) error {
	n := q.name
	cur, err := p.name(n.Key)
	if err != nil {
		return err
	}
	kept := p.replaced(q, cur)
	if p.count(q, cur) {
		if cur.rec.flags|kept != cur.rec.flags {
			cur.rec.flags |= kept
			p.write(cur)
		}
		return nil
	}
	at := cur.at
	if !cur.found || at.pos != alone && at.pos != n.Depth+1 && !n.Dropped {
		if at, err = p.seat(n, cur.bare); err != nil {
			return err
		}
	}
	cur.rec = nameRecord{key: n.Key, segment: q.segment, seq: n.Seq, flags: n.flags() | kept}
	if at.pos == alone {
		cur.rec.flags, cur.rec.depth = cur.rec.flags|flagAlone, n.Depth
	}
	if !n.Dropped {
		cur.rec.id, cur.rec.expires, cur.rec.note = n.ID, n.Expires, n.Note
		b := q.block
		if b == nil {
			if b, err = p.block(n.ID); err != nil {
				return err
			}
		}
		if b.batch != q.batch {
			p.stray(n.ID, n.Key)
		}
		p.own(cur, b)
	}
	p.move(cur, at)
	return nil
}

// replaced returns which flags the newer one of two records has for the sake of the
// other, and of those that were there before.
func (p *planner) replaced(q *queued, cur *named) (flags uint16) {
	if !cur.exists {
		return 0
	}
	flags = cur.rec.flags & (flagHides | flagOutlived)
	if p.ofOthers(cur.rec.segment, q.segment) {
		flags |= flagHides
	}
	had := cur.rec.name(cur.at)
	old, young := had.ends(), q.name.ends()
	if cur.rec.seq > q.name.Seq {
		old, young = young, old
	}
	if old > young {
		flags |= flagOutlived
	}
	return flags
}

// count accounts for a name in the rows of its segment and of the one whose record
// it replaces, and reports whether it is older than what is there. Of two copies of one
// record that in the segment that supersedes the other counts, as of a block.
func (p *planner) count(q *queued, cur *named) (older bool) {
	counted := cur.exists && cur.rec.flags&flagDropped == 0
	older = cur.exists && cur.rec.seq > q.name.Seq
	if cur.exists && cur.rec.seq == q.name.Seq { // of a record and a withdrawal that counts
		older = !counted && !q.name.Dropped || counted != q.name.Dropped && p.supersedes(cur.rec.segment, q.segment)
	}
	if !q.name.Dropped {
		if counted && cur.rec.segment == q.segment && cur.rec.seq == q.name.Seq {
			return false // the same record again
		}
		row := p.row(q.segment)
		row.names++
		row.ends = max(row.ends, q.name.ends())
	}
	switch {
	case older && !q.name.Dropped:
		p.row(q.segment).stale++
	case !older && counted:
		p.row(cur.rec.segment).stale++
	}
	return older
}

// ends is when a name ends, in Unix seconds, rounded up; 0 for one that was withdrawn.
func (n *Name) ends() uint64 {
	switch {
	case n.Dropped:
		return 0
	case n.Expires.IsZero():
		return never
	}
	return uint64(max(0, n.Expires.Unix()+1))
}

func (n Name) flags() (f uint16) {
	if n.Inferred {
		f |= flagInferred
	}
	if n.Prefix {
		f |= flagPrefix
	}
	if n.Bound {
		f |= flagBound
	}
	if n.Dropped {
		f |= flagDropped
	}
	return f
}

// ofOthers reports whether two segments that are alive are of different parts.
func (p *planner) ofOthers(a, b uint32) bool {
	x, y := p.engine.segments.row(a).segment, p.engine.segments.row(b).segment
	return x.Rank != y.Rank || x.Incarnation != y.Incarnation
}

// own gives a name's record a copy of its block's place if nobody else has one.
func (p *planner) own(n *named, b *placed) {
	if !b.exists {
		return
	}
	if b.rec.owner == (Key{}) {
		b.rec.owner, b.owner = n.rec.key, n
		p.touch(b)
	}
	if b.rec.owner == n.rec.key {
		n.rec.flags |= flagCopy
		n.rec.copy = b.rec.place
	}
}

// stray notes a name that whoever reads its block's batch does not meet there.
func (p *planner) stray(id block.ID, name Key) {
	p.buf = appendStrayKey(p.buf[:0], id, name)
	p.draft.Set(p.buf, nil)
}

// seat chooses where a name lies that has no place yet, or the wrong one: behind
// its parent if that is the last of its run, otherwise at the beginning of a
// run of its own, or alone when others lie there already.
func (p *planner) seat(n *Name, bare bool) (spot, error) {
	if n.Parent != (Key{}) && n.Parent != n.Key && !n.Dropped {
		parent, err := p.name(n.Parent)
		if err != nil {
			return spot{}, err
		}
		if parent.found && parent.at.pos != alone && parent.at.pos == n.Depth && parent.at.run != n.Key {
			next := spot{parent.at.run, parent.at.pos + 1}
			if last, err := p.isEnd(next); last || err != nil {
				p.ends[next.run] = next.pos + 1
				return next, err
			}
		}
	}
	if !bare || n.Dropped {
		return spot{n.Key, alone}, nil
	}
	p.ends[n.Key] = n.Depth + 2
	return spot{n.Key, n.Depth + 1}, nil
}

// isEnd reports whether nothing lies in a run from a position on.
func (p *planner) isEnd(at spot) (bool, error) {
	if end, ok := p.ends[at.run]; ok {
		return end == at.pos, nil
	}
	r := p.reader
	if err := r.open(&r.side); err != nil {
		return false, err
	}
	return !r.side.SeekPrefixGE(appendNameKey(r.key[:0], at)), r.side.Error()
}

// move writes a name's record at its place, and a link there if that is in the
// run of another.
func (p *planner) move(n *named, to spot) {
	key, from, had := n.rec.key, n.at, n.found
	n.at, n.found, n.exists, n.bare = to, true, true, false
	if had && from != to {
		p.delete(from)
	}
	p.write(n)
	if had && from == to || to.run == key {
		return
	}
	p.buf = appendNameKey(p.buf[:0], spot{key, alone})
	p.val = appendLink(p.val[:0], to)
	p.draft.Set(p.buf, p.val)
}

func (p *planner) write(n *named) {
	p.buf = appendNameKey(p.buf[:0], n.at)
	p.val = appendNameRecord(p.val[:0], n.rec)
	p.draft.Set(p.buf, p.val)
}

func (p *planner) delete(at spot) {
	p.buf = appendNameKey(p.buf[:0], at)
	p.draft.Delete(p.buf)
}

// finish plans the names and writes what many entries share.
func (p *planner) finish() error {
	order := make([]uint64, len(p.queue))
	for i, q := range p.queue {
		order[i] = uint64(q.name.Depth)<<32 | uint64(i)
	}
	slices.Sort(order)
	for _, i := range order {
		if err := p.putName(&p.queue[uint32(i)]); err != nil {
			return err
		}
	}
	clear(p.queue) // a planner that is kept must not keep batches
	for _, b := range p.order {
		if err := p.writeBlock(b); err != nil {
			return err
		}
	}
	for number, row := range p.rows {
		p.engine.segments.set(number, *row)
		p.buf = appendSegmentKey(p.buf[:0], number)
		p.val = appendSegmentRow(p.val[:0], *row)
		p.draft.Set(p.buf, p.val)
	}
	return nil
}

// writeBlock writes a block's record and makes the copy in its owner's record
// equal to it.
func (p *planner) writeBlock(b *placed) error {
	if b.rec.owner != (Key{}) {
		n := b.owner
		if n == nil {
			var err error
			if n, err = p.name(b.rec.owner); err != nil {
				return err
			}
		}
		if !n.exists || n.rec.id != b.id {
			b.rec.owner = Key{} // it names another block now
		} else if has := n.rec.flags&flagCopy != 0; has != b.exists || has && n.rec.copy != b.rec.place {
			n.rec.flags &^= flagCopy
			if b.exists {
				n.rec.flags, n.rec.copy = n.rec.flags|flagCopy, b.rec.place
			}
			p.write(n)
		}
		if b.exists && b.rec.owner != (Key{}) && n.rec.segment != b.rec.place.segment {
			p.stray(b.id, b.rec.owner) // it did not come along
		}
	}
	p.buf = appendBlockKey(p.buf[:0], b.id)
	if !b.exists {
		p.draft.Delete(p.buf)
		return nil
	}
	p.val = appendBlockRecord(p.val[:0], b.rec)
	p.draft.Set(p.buf, p.val)
	return nil
}
