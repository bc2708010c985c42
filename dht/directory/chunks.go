package directory

import (
	"encoding/binary"
	"math/bits"
)

const (
	minChunk = 512
	maxChunk = 64 << 10 // offsets take 16 bits; an item that is larger has its own

	maxChunks = 1<<16 - 1 // numbers take 16 bits

	// A new chunk is at most one part in chunkShare of what there is, so that little of
	// it all is unused, and when more than one part in deadShare is dead, the chunk with
	// most of that is evacuated: an item is moved about deadShare times at most for
	// each that dies.
	chunkShare = 16
	deadShare  = 16

	// An item keeps its place for others of its size, or of a little less.
	maxSlack = 4
)

// chunks hold items, which are bytes, one behind the other. The collector finds no
// pointers in them, and an item costs no more than its bytes and its length. A ref says
// where an item is: the number of the chunk and the offset; 0 is none.
type chunks struct {
	list   []chunk
	unused []uint32 // numbers of chunks to be given
	open   uint32   // the chunk that grows, 0: none

	size, dead int // bytes of all chunks, and of what is no item any more
}

type chunk struct {
	bytes []byte // items: twice their length, and one if they are dead, as a uvarint, then the bytes
	dead  int
}

// item returns the bytes of an item.
func (c *chunks) item(ref uint32) []byte {
	b := c.list[ref>>16].bytes[ref&0xffff:]
	n, head := binary.Uvarint(b)
	return b[head:][:n>>1]
}

// add adds an item and returns where it is, 0 if there is no number for one more chunk.
func (c *chunks) add(item []byte) uint32 {
	n := len(item) + (bits.Len(uint(len(item))<<1|1)+6)/7
	if c.open == 0 || cap(c.list[c.open].bytes)-len(c.list[c.open].bytes) < n {
		if !c.grow(n) {
			return 0
		}
	}
	in := &c.list[c.open]
	ref := c.open<<16 | uint32(len(in.bytes))
	in.bytes = append(binary.AppendUvarint(in.bytes, uint64(len(item))<<1), item...)
	return ref
}

// grow begins a chunk with room for n bytes.
func (c *chunks) grow(n int) bool {
	number := uint32(len(c.list))
	switch last := len(c.unused) - 1; {
	case last >= 0:
		number, c.unused = c.unused[last], c.unused[:last]
	case number == 0:
		c.list, number = make([]chunk, 2), 1 // so that no ref is 0
	case number > maxChunks:
		return false
	default:
		c.list = append(c.list, chunk{})
	}
	size := min(max(c.size/chunkShare, minChunk), maxChunk)
	size = max(n, 1<<(bits.Len(uint(size))-1)) // the allocator rounds up others
	c.list[number].bytes, c.open = make([]byte, 0, size), number
	c.size += size
	return true
}

// replace puts an item in place of another one, if it fits.
func (c *chunks) replace(ref uint32, item []byte) bool {
	old := c.item(ref)
	if len(item) > len(old) || len(item) < len(old)-maxSlack {
		return false
	}
	copy(old, item)
	return true
}

// remove removes an item. Others may be due to be moved then: see evacuate.
func (c *chunks) remove(ref uint32) {
	b := c.list[ref>>16].bytes[ref&0xffff:]
	n, head := binary.Uvarint(b)
	b[0] |= 1
	c.list[ref>>16].dead += head + int(n>>1)
	c.dead += head + int(n>>1)
}

// evacuate frees the chunk with most dead bytes, if so many are dead that it pays, and
// reports whether it did. It calls moved for each item that is somewhere else then.
func (c *chunks) evacuate(moved func(item []byte, from, to uint32)) bool {
	if c.dead <= c.size/deadShare+minChunk || len(c.list) > maxChunks && len(c.unused) == 0 {
		return false
	}
	var number uint32
	for i := range c.list {
		if uint32(i) != c.open && c.list[i].dead > c.list[number].dead {
			number = uint32(i)
		}
	}
	from := c.list[number]
	if from.dead == 0 {
		return false // all that is dead is in the chunk that grows
	}
	for at := 0; from.dead < len(from.bytes) && at < len(from.bytes); {
		n, head := binary.Uvarint(from.bytes[at:])
		item := from.bytes[at+head:][:n>>1]
		if n&1 == 0 {
			moved(item, number<<16|uint32(at), c.add(item))
		}
		at += head + len(item)
	}
	c.list[number], c.unused = chunk{}, append(c.unused, number)
	c.size -= cap(from.bytes)
	c.dead -= from.dead
	return true
}
