package segment

import (
	"fmt"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
)

// Entry kinds and flags of docs/format.md §1.5.
const (
	kindBlock = 1
	kindName  = 2
	kindDrop  = 3

	flagInline  = 1
	flagPrefix  = 1
	flagBound   = 2
	flagExpires = 4

	blockEntrySize = 80
	nameEntrySize  = 72
	dropEntrySize  = 24
)

// entry is one decoded entry; kind says which fields count.
type entry struct {
	kind      uint16
	info      block.Info // BLOCK; of a NAME the id
	stored    int64      // bytes of the payload as stored
	off       int64      // of the payload, from the start of the frame or file
	storedCRC uint32
	codec     codec.Number
	name      block.Name // NAME; of a DROP namespace, key and seq
}

// as tells how the payload of a BLOCK is stored.
func (e *entry) as() stored { return stored{e.stored, e.storedCRC, e.codec} }

func align8(n int) int { return (n + 7) &^ 7 }

// begin appends a zeroed entry of size bytes and returns it for filling.
func begin(p []byte, kind, flags uint16, size int) (all, e []byte) {
	at := len(p)
	p = append(p, make([]byte, size)...)
	e = p[at:]
	le.PutUint16(e, kind)
	le.PutUint16(e[2:], flags)
	le.PutUint32(e[4:], uint32(size))
	return p, e
}

// appendBlock appends a BLOCK. inline, when not nil, is its payload, which then
// lies in the entry.
func appendBlock(p []byte, info block.Info, as stored, off int64, inline []byte) []byte {
	var flags uint16
	if inline != nil {
		flags = flagInline
	}
	p = appendStored(p, info, as, off, flags, align8(len(inline)))
	copy(p[len(p)-align8(len(inline)):], inline)
	return p
}

// appendStored appends the fixed part of a BLOCK, and room bytes of zeros.
func appendStored(p []byte, info block.Info, as stored, off int64, flags uint16, room int) []byte {
	p, e := begin(p, kindBlock, flags, blockEntrySize+room)
	copy(e[8:40], info.ID[:])
	le.PutUint64(e[40:], uint64(info.Size))
	le.PutUint64(e[48:], uint64(as.size))
	le.PutUint64(e[56:], uint64(off))
	le.PutUint32(e[64:], info.CRC)
	le.PutUint32(e[68:], as.crc)
	e[72] = byte(as.codec)
	return p
}

// nameSize and dropSize return the bytes of the entries of n.
func nameSize(n block.Name) int {
	return align8(nameEntrySize + len(n.Namespace) + len(n.Key) + len(n.Parent))
}

func dropSize(n block.Name) int { return align8(dropEntrySize + len(n.Namespace) + len(n.Key)) }

func appendName(p []byte, id block.ID, n block.Name) []byte {
	var flags uint16
	if n.Prefix {
		flags |= flagPrefix
	}
	if n.Bound {
		flags |= flagBound
	}
	if !n.Expires.IsZero() {
		flags |= flagExpires
	}
	p, e := begin(p, kindName, flags, nameSize(n))
	copy(e[8:40], id[:])
	le.PutUint64(e[40:], n.Seq)
	if flags&flagExpires != 0 {
		le.PutUint64(e[48:], uint64(n.Expires.Unix()))
		le.PutUint32(e[56:], uint32(n.Expires.Nanosecond()))
	}
	le.PutUint32(e[60:], n.Depth)
	le.PutUint16(e[64:], uint16(len(n.Namespace)))
	le.PutUint16(e[66:], uint16(len(n.Key)))
	le.PutUint16(e[68:], uint16(len(n.Parent)))
	copy(e[copy(e[72:], n.Namespace)+72:], n.Key)
	copy(e[72+len(n.Namespace)+len(n.Key):], n.Parent)
	return p
}

func appendDrop(p []byte, n block.Name) []byte {
	p, e := begin(p, kindDrop, 0, dropSize(n))
	le.PutUint64(e[8:], n.Seq)
	le.PutUint16(e[16:], uint16(len(n.Namespace)))
	le.PutUint16(e[18:], uint16(len(n.Key)))
	copy(e[24:], n.Namespace)
	copy(e[24+len(n.Namespace):], n.Key)
	return p
}

// checkName reports whether a record of n can be written.
func checkName(n block.Name) error {
	if len(n.Namespace) > block.MaxKey || len(n.Key) > block.MaxKey || len(n.Parent) > block.MaxKey {
		return fmt.Errorf("%w: namespace, key or parent of %.40q is longer than %d bytes", ErrBadItem, n.Key, block.MaxKey)
	}
	return nil
}

// decodeTable appends want entries to out. base is where the table starts in the
// frame, and limit where the frame (or, for a footer, the last frame) ends. Kinds,
// and blocks with a codec, that this version does not know are left out. Errors
// match ErrBadFormat; out may have been written to then.
func decodeTable(out []entry, p []byte, base int64, want int, limit int64) ([]entry, error) {
	if want > len(p)/8 {
		return nil, badFormat("%d entries in %d bytes", want, len(p))
	}
	out = slices.Grow(out, min(want, 1<<12))
	off := base
	last := &block.Name{}
	for range want {
		if len(p) < 8 {
			return nil, badFormat("entry table ends early")
		}
		n := int(le.Uint32(p[4:]))
		if n < 8 || n%8 != 0 || n > len(p) {
			return nil, badFormat("entry of %d bytes with %d left", n, len(p))
		}
		e, known, err := decodeEntry(p[:n], off, limit, last)
		if err != nil {
			return nil, err
		}
		if known {
			out = append(out, e)
			if e.kind != kindBlock {
				last = &out[len(out)-1].name
			}
		}
		p, off = p[n:], off+int64(n)
	}
	if len(p) != 0 {
		return nil, badFormat("%d bytes behind the last entry", len(p))
	}
	return out, nil
}

// decodeEntry reads one entry that starts at off of its frame. It shares texts
// with the last one: most names of a segment are of one namespace, and follow
// their parents.
func decodeEntry(p []byte, off, limit int64, last *block.Name) (e entry, known bool, err error) {
	e.kind = le.Uint16(p)
	flags := le.Uint16(p[2:])
	switch e.kind {
	case kindBlock:
		return decodeBlock(p, flags, off, limit)
	case kindName:
		if len(p) < nameEntrySize {
			return e, false, badFormat("NAME of %d bytes", len(p))
		}
		copy(e.info.ID[:], p[8:40])
		e.name = block.Name{
			Seq: le.Uint64(p[40:]), Depth: le.Uint32(p[60:]),
			Prefix: flags&flagPrefix != 0, Bound: flags&flagBound != 0,
		}
		if flags&flagExpires != 0 {
			e.name.Expires = time.Unix(int64(le.Uint64(p[48:])), int64(le.Uint32(p[56:]))).UTC()
		}
		err = cut(p[nameEntrySize:], []*string{&e.name.Namespace, &e.name.Key, &e.name.Parent}, p[64:], last)
		return e, err == nil, err
	case kindDrop:
		if len(p) < dropEntrySize {
			return e, false, badFormat("DROP of %d bytes", len(p))
		}
		e.name.Seq = le.Uint64(p[8:])
		err = cut(p[dropEntrySize:], []*string{&e.name.Namespace, &e.name.Key}, p[16:], last)
		return e, err == nil, err
	}
	return e, false, nil
}

// cut takes strings off text; their lengths are the 16-bit numbers in lengths.
// What last has too is shared with it.
func cut(text []byte, into []*string, lengths []byte, last *block.Name) error {
	for i, s := range into {
		n := int(le.Uint16(lengths[2*i:]))
		if n > len(text) || n > block.MaxKey {
			return badFormat("string of %d bytes in %d", n, len(text))
		}
		switch {
		case string(text[:n]) == last.Namespace:
			*s = last.Namespace
		case string(text[:n]) == last.Key:
			*s = last.Key
		default:
			*s = string(text[:n])
		}
		text = text[n:]
	}
	return nil
}

func decodeBlock(p []byte, flags uint16, off, limit int64) (e entry, known bool, err error) {
	if len(p) < blockEntrySize {
		return e, false, badFormat("BLOCK of %d bytes", len(p))
	}
	e.kind = kindBlock
	copy(e.info.ID[:], p[8:40])
	e.info.Size, e.stored, e.off = int64(le.Uint64(p[40:])), int64(le.Uint64(p[48:])), int64(le.Uint64(p[56:]))
	e.info.CRC, e.storedCRC, e.codec = le.Uint32(p[64:]), le.Uint32(p[68:]), codec.Number(p[72])
	if e.info.Size < 0 || e.info.Size > block.MaxSize || e.stored < 0 || e.stored > 2*block.MaxSize {
		return e, false, badFormat("BLOCK of size %d, stored %d", e.info.Size, e.stored)
	}
	if flags&flagInline != 0 {
		if e.off != off+blockEntrySize || e.stored > int64(len(p)-blockEntrySize) {
			return e, false, badFormat("inline payload of %d bytes at %d", e.stored, e.off)
		}
	} else if e.off < 0 || e.off > limit || e.stored > limit-e.off {
		return e, false, badFormat("payload of %d bytes at %d of %d", e.stored, e.off, limit)
	}
	known = e.codec.Known()
	if known && !e.as().fits(e.info) {
		return e, false, badFormat("BLOCK of size %d, stored %d (%v)", e.info.Size, e.stored, e.codec)
	}
	return e, known, nil
}
