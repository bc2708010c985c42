package nvme

import (
	"cascadekv/internal/block"
)

// maxPending bounds the notes that the store's log does not have yet, in bytes, while the disk does not keep up. Beyond
// it they are dropped, and the log is written anew from what is true.
const maxPending = 8 << 20

// changes are what was done and the log does not have. The tier's mutex guards them.
type changes struct {
	seq     uint64 // of the last change
	durable uint64 // the changes that a crash leaves
	pending [][]byte
	bytes   int64

	asked   int    // how many of pending the store asked for
	anew    uint64 // the changes that All began with; 0: Pending was asked last
	dropped uint64 // changes up to this one are not in pending
	whole   uint64 // changes up to this one are in the log, whatever pending has
}

func (c *changes) add(note []byte) {
	c.seq++
	if c.bytes+int64(len(note)) > maxPending {
		c.drop()
		return
	}
	c.pending = append(c.pending, note)
	c.bytes += int64(len(note))
}

// drop forgets what is pending: the log is to be written anew.
func (c *changes) drop() { c.pending, c.bytes, c.asked, c.dropped = nil, 0, 0, c.seq }

// lost reports whether the log can only be right when it is written anew.
func (c *changes) lost() bool { return c.dropped > c.whole }

// book is the tier as its store sees it. It implements store.Notes.
type book struct{ t *Tier }

// Reset implements store.Notes.
func (b book) Reset() {
	defer b.t.lock()()
	b.t.mu.index = newIndex()
}

// Replay implements store.Notes.
func (b book) Replay(p []byte) {
	n, ok := decodeNote(p)
	if !ok {
		return
	}
	defer b.t.lock()()
	b.t.mu.index.replay(n)
}

// Pending implements store.Notes.
func (b book) Pending() ([][]byte, bool) {
	defer b.t.lock()()
	c := &b.t.mu.changes
	c.asked, c.anew = len(c.pending), 0
	return c.pending[:c.asked:c.asked], !c.lost()
}

// Written implements store.Notes.
func (b book) Written() {
	defer b.t.lock()()
	c := &b.t.mu.changes
	for _, note := range c.pending[:c.asked] {
		c.bytes -= int64(len(note))
	}
	c.pending = c.pending[c.asked:]
	if len(c.pending) == 0 {
		c.pending = nil
	}
	c.asked, c.whole = 0, max(c.whole, c.anew)
}

// atOnce is of how many blocks notes are made at a time, with the tier's mutex held.
const atOnce = 256

// All implements store.Notes. What changes while it runs is pending: that is a change of what it has written, or
// the same again.
func (b book) All(fn func([][]byte) error) error {
	blocks, notes := b.begin()
	for {
		if err := fn(notes); err != nil {
			return err
		}
		if len(blocks) == 0 {
			return nil
		}
		n := min(atOnce, len(blocks))
		notes = b.notesOf(blocks[:n])
		blocks = blocks[n:]
	}
}

func (b book) begin() (blocks []*stored, notes [][]byte) {
	defer b.t.lock()()
	c := &b.t.mu.changes
	c.asked, c.anew = len(c.pending), c.seq
	for ns, l := range b.t.mu.layouts {
		notes = append(notes, encodeLayout(ns, l.seq, l.layout))
	}
	blocks = make([]*stored, 0, len(b.t.mu.blocks))
	for _, s := range b.t.mu.blocks {
		blocks = append(blocks, s)
	}
	return blocks, notes
}

func (b book) notesOf(blocks []*stored) (notes [][]byte) {
	defer b.t.lock()()
	for _, s := range blocks {
		if s.gone {
			continue
		}
		notes = append(notes, encodeBlock(s.stay, s.info))
		for _, n := range s.names {
			notes = append(notes, encodeName(s.stay, n.Name))
		}
	}
	return notes
}

// index finds what is stored. The tier's mutex guards it.
type index struct {
	blocks  map[block.ID]*stored
	stays   map[uint64]*stored // the same, by generation
	names   map[nameKey]*named
	layouts map[string]layoutOf
	payload int64 // bytes of the blocks
}

func newIndex() index {
	return index{map[block.ID]*stored{}, map[uint64]*stored{}, map[nameKey]*named{}, map[string]layoutOf{}, 0}
}

type nameKey struct{ namespace, key string }

// named is the newest record of a name, with the block that it points to.
type named struct {
	block.Name
	of *stored
	at int // in the names of that block
}

// layoutOf is how the blocks of a namespace are made.
type layoutOf struct {
	seq    uint64
	layout block.Layout
}

func (x *index) add(b *stored) {
	x.blocks[b.info.ID], x.stays[b.stay.generation()] = b, b
	x.payload += b.info.Size
}

// remove makes a block none, and its names.
func (x *index) remove(b *stored) {
	delete(x.blocks, b.info.ID)
	delete(x.stays, b.stay.generation())
	x.payload -= b.info.Size
	for _, n := range b.names {
		delete(x.names, nameKey{n.Namespace, n.Key})
	}
	b.names, b.gone = nil, true
}

func (x *index) rename(b *stored, id block.ID) {
	delete(x.blocks, b.info.ID)
	b.info.ID, x.blocks[id] = id, b
}

// link records a name, and false if there is a newer record of it.
func (x *index) link(b *stored, n block.Name) bool {
	k := nameKey{n.Namespace, n.Key}
	if old := x.names[k]; old != nil {
		if old.Seq > n.Seq {
			return false
		}
		x.unlink(old)
	}
	r := &named{n, b, len(b.names)}
	b.names, x.names[k] = append(b.names, r), r
	return true
}

func (x *index) unlink(n *named) {
	last := len(n.of.names) - 1
	moved := n.of.names[last]
	n.of.names[n.at], moved.at = moved, n.at
	n.of.names[last] = nil
	n.of.names = n.of.names[:last]
	delete(x.names, nameKey{n.Namespace, n.Key})
}

// older returns the record of a name that a withdrawal as of its Seq is of, nil for none.
func (x *index) older(n block.Name) *named {
	if old := x.names[nameKey{n.Namespace, n.Key}]; old != nil && old.Seq <= n.Seq {
		return old
	}
	return nil
}

// setLayout records a layout, and false if there is one as new.
func (x *index) setLayout(ns string, l layoutOf) bool {
	if old, ok := x.layouts[ns]; ok && old.seq >= l.seq {
		return false
	}
	x.layouts[ns] = l
	return true
}

// replay does what a note says was done.
func (x *index) replay(n note) {
	b := x.stays[n.stay.generation()]
	if b != nil && b.stay != n.stay {
		b = nil
	}
	switch n.kind {
	case noteBlock:
		if b != nil && (b.info.Size != n.info.Size || b.info.CRC != n.info.CRC) {
			return
		}
		if old := x.blocks[n.info.ID]; old != nil && old != b {
			x.remove(old)
		}
		if b != nil {
			x.rename(b, n.info.ID)
		} else if x.stays[n.stay.generation()] == nil {
			x.add(&stored{stay: n.stay, info: n.info})
		}
	case noteGone:
		if b != nil {
			x.remove(b)
		}
	case noteName:
		if b != nil {
			x.link(b, n.name)
		}
	case noteUnlink:
		if old := x.older(n.name); old != nil {
			x.unlink(old)
		}
	case noteLayout:
		x.setLayout(n.space, layoutOf{n.seq, n.layout})
	}
}
