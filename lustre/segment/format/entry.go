package format

import (
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
)

// Kind is the kind of an entry.
type Kind uint16

// Kinds of entries (docs/format.md §1.5).
const (
	KindBlock  Kind = 1
	KindName   Kind = 2
	KindDrop   Kind = 3
	KindLayout Kind = 4
)

// Flags and sizes of entries.
const (
	flagInline   = 1
	flagPrefix   = 1
	flagBound    = 2
	flagExpires  = 4
	flagInferred = 8

	BlockEntrySize  = 80
	nameEntrySize   = 72
	dropEntrySize   = 24
	layoutEntrySize = 56
)

// Entry is one decoded entry; the kind decides which fields count.
type Entry struct {
	Kind      Kind
	Info      block.Info // BLOCK; of a NAME the id
	Stored    int64      // bytes of the payload as stored
	Off       int64      // of the payload, from the start of the frame or file
	StoredCRC uint32
	Codec     codec.Number
	Name      block.Name // NAME; of a DROP namespace, key and seq, of a LAYOUT namespace and seq
	Layout    *block.Layout
}

// Same reports whether two entries say the same.
func (e Entry) Same(as Entry) bool {
	if e.Layout != nil && as.Layout != nil && *e.Layout == *as.Layout {
		e.Layout = as.Layout
	}
	return e == as
}

// As is how the payload of a BLOCK is stored.
func (e *Entry) As() Payload { return Payload{e.Stored, e.StoredCRC, e.Codec} }

// Record is an entry other than a BLOCK as one.
func (e *Entry) Record() Record {
	return Record{ID: e.Info.ID, Name: e.Name, Dropped: e.Kind == KindDrop, Layout: e.Layout}
}

// align8 rounds n up to a multiple of 8, the size of an entry.
func align8(n int) int { return (n + 7) &^ 7 }

// begin appends a zeroed entry of size bytes and returns it for filling.
func begin(p []byte, kind Kind, flags uint16, size int) (all, e []byte) {
	at := len(p)
	p = append(p, make([]byte, size)...)
	e = p[at:]
	LE.PutUint16(e, uint16(kind))
	LE.PutUint16(e[2:], flags)
	LE.PutUint32(e[4:], uint32(size))
	return p, e
}

// appendBlock appends the fixed part of a BLOCK, and room bytes of zeros.
func appendBlock(p []byte, info block.Info, as Payload, off int64, flags uint16, room int) []byte {
	p, e := begin(p, KindBlock, flags, BlockEntrySize+room)
	copy(e[8:40], info.ID[:])
	LE.PutUint64(e[40:], uint64(info.Size))
	LE.PutUint64(e[48:], uint64(as.Size))
	LE.PutUint64(e[56:], uint64(off))
	LE.PutUint32(e[64:], info.CRC)
	LE.PutUint32(e[68:], as.CRC)
	e[72] = byte(as.Codec)
	return p
}

// appendName appends a NAME of the block id to p.
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
	if n.Inferred {
		flags |= flagInferred
	}
	p, e := begin(p, KindName, flags, Record{Name: n}.size())
	copy(e[8:40], id[:])
	LE.PutUint64(e[40:], n.Seq)
	if flags&flagExpires != 0 {
		LE.PutUint64(e[48:], uint64(n.Expires.Unix()))
		LE.PutUint32(e[56:], uint32(n.Expires.Nanosecond()))
	}
	LE.PutUint32(e[60:], n.Depth)
	LE.PutUint16(e[64:], uint16(len(n.Namespace)))
	LE.PutUint16(e[66:], uint16(len(n.Key)))
	LE.PutUint16(e[68:], uint16(len(n.Parent)))
	copy(e[copy(e[72:], n.Namespace)+72:], n.Key)
	copy(e[72+len(n.Namespace)+len(n.Key):], n.Parent)
	return p
}

// appendDrop appends a DROP, of which only Namespace, Key and Seq of n count.
func appendDrop(p []byte, n block.Name) []byte {
	p, e := begin(p, KindDrop, 0, Record{Name: n, Dropped: true}.size())
	LE.PutUint64(e[8:], n.Seq)
	LE.PutUint16(e[16:], uint16(len(n.Namespace)))
	LE.PutUint16(e[18:], uint16(len(n.Key)))
	copy(e[24:], n.Namespace)
	copy(e[24+len(n.Namespace):], n.Key)
	return p
}

// appendLayout appends a LAYOUT, of which Namespace and Seq of n count.
func appendLayout(p []byte, n block.Name, l *block.Layout) []byte {
	p, e := begin(p, KindLayout, 0, Record{Name: n, Layout: l}.size())
	LE.PutUint64(e[8:], n.Seq)
	l.AppendNumbers(e[:16])
	LE.PutUint16(e[48:], uint16(len(n.Namespace)))
	LE.PutUint16(e[50:], uint16(len(l.DType)))
	copy(e[copy(e[layoutEntrySize:], n.Namespace)+layoutEntrySize:], l.DType)
	return p
}

func decodeLayout(p []byte, last *block.Name) (e Entry, known bool, err error) {
	e.Kind = KindLayout
	if len(p) < layoutEntrySize {
		return e, false, Errorf("LAYOUT of %d bytes", len(p))
	}
	e.Name.Seq = LE.Uint64(p[8:])
	e.Layout = new(block.Layout)
	e.Layout.SetNumbers(p[16:])
	if err := cut(p[layoutEntrySize:], []*string{&e.Name.Namespace, &e.Layout.DType}, p[48:], last); err != nil {
		return e, false, err
	}
	if err := e.Layout.Check(); err != nil {
		return e, false, Errorf("LAYOUT of %.40q: %v", e.Name.Namespace, err)
	}
	return e, true, nil
}

// decodeTable appends the entries of a table to out. base is where the table
// starts in the frame, and limit where the frame (or, for a footer, the last frame)
// ends. Kinds, and blocks with a codec, that this version does not know are left
// out. Errors match ErrBadFormat; out may have been written to then.
func decodeTable(out []Entry, p []byte, base int64, want int, limit int64) ([]Entry, error) {
	out = slices.Grow(out, min(want, 1<<12))
	err := EachEntry(p, base, limit, want, func(e *Entry, _ int64, known bool) {
		if known {
			out = append(out, *e)
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// EachEntry calls fn with each of want entries of the table p, with where it starts
// in the frame and whether its kind and codec are known. fn may change
// the entry and must not keep it. base and limit are those of decodeTable. Errors
// match ErrBadFormat.
func EachEntry(p []byte, base, limit int64, want int, fn func(e *Entry, off int64, known bool)) error {
	if want > len(p)/8 {
		return Errorf("%d entries in %d bytes", want, len(p))
	}
	var e Entry
	var last block.Name
	for off := base; want > 0; want-- {
		if len(p) < 8 {
			return Errorf("entry table ends early")
		}
		n := int(LE.Uint32(p[4:]))
		if n < 8 || n%8 != 0 || n > len(p) {
			return Errorf("entry of %d bytes with %d left", n, len(p))
		}
		var known bool
		var err error
		if e, known, err = decodeEntry(p[:n], off, limit, &last); err != nil {
			return err
		}
		if known && e.Kind != KindBlock {
			last = e.Name
		}
		fn(&e, off, known)
		p, off = p[n:], off+int64(n)
	}
	if len(p) != 0 {
		return Errorf("%d bytes behind the last entry", len(p))
	}
	return nil
}

// decodeEntry reads one entry that starts at off of its frame. It shares texts
// with the last one: most names of a segment are of one namespace, and follow
// their parents.
func decodeEntry(p []byte, off, limit int64, last *block.Name) (e Entry, known bool, err error) {
	e.Kind = Kind(LE.Uint16(p))
	flags := LE.Uint16(p[2:])
	switch e.Kind {
	case KindBlock:
		return decodeBlock(p, flags, off, limit)
	case KindName:
		if len(p) < nameEntrySize {
			return e, false, Errorf("NAME of %d bytes", len(p))
		}
		copy(e.Info.ID[:], p[8:40])
		e.Name = block.Name{
			Seq: LE.Uint64(p[40:]), Depth: LE.Uint32(p[60:]),
			Prefix: flags&flagPrefix != 0, Bound: flags&flagBound != 0, Inferred: flags&flagInferred != 0,
		}
		if flags&flagExpires != 0 {
			e.Name.Expires = time.Unix(int64(LE.Uint64(p[48:])), int64(LE.Uint32(p[56:]))).UTC()
		}
		err = cut(p[nameEntrySize:], []*string{&e.Name.Namespace, &e.Name.Key, &e.Name.Parent}, p[64:], last)
		return e, err == nil, err
	case KindDrop:
		if len(p) < dropEntrySize {
			return e, false, Errorf("DROP of %d bytes", len(p))
		}
		e.Name.Seq = LE.Uint64(p[8:])
		err = cut(p[dropEntrySize:], []*string{&e.Name.Namespace, &e.Name.Key}, p[16:], last)
		return e, err == nil, err
	case KindLayout:
		return decodeLayout(p, last)
	}
	return e, false, nil
}

// cut takes strings off text; their lengths are the 16-bit numbers in lengths.
// What last has too is shared with it.
func cut(text []byte, into []*string, lengths []byte, last *block.Name) error {
	for i, s := range into {
		n := int(LE.Uint16(lengths[2*i:]))
		if n > len(text) || n > block.MaxKey {
			return Errorf("string of %d bytes in %d", n, len(text))
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

func decodeBlock(p []byte, flags uint16, off, limit int64) (e Entry, known bool, err error) {
	if len(p) < BlockEntrySize {
		return e, false, Errorf("BLOCK of %d bytes", len(p))
	}
	e.Kind = KindBlock
	copy(e.Info.ID[:], p[8:40])
	e.Info.Size, e.Stored, e.Off = int64(LE.Uint64(p[40:])), int64(LE.Uint64(p[48:])), int64(LE.Uint64(p[56:]))
	e.Info.CRC, e.StoredCRC, e.Codec = LE.Uint32(p[64:]), LE.Uint32(p[68:]), codec.Number(p[72])
	if e.Info.Size < 0 || e.Info.Size > block.MaxSize || e.Stored < 0 || e.Stored > 2*block.MaxSize {
		return e, false, Errorf("BLOCK of size %d, stored %d", e.Info.Size, e.Stored)
	}
	if flags&flagInline != 0 {
		if e.Off != off+BlockEntrySize || e.Stored > int64(len(p)-BlockEntrySize) {
			return e, false, Errorf("inline payload of %d bytes at %d", e.Stored, e.Off)
		}
	} else if e.Off < 0 || e.Off > limit || e.Stored > limit-e.Off {
		return e, false, Errorf("payload of %d bytes at %d of %d", e.Stored, e.Off, limit)
	}
	known = e.Codec.Known()
	if known && !e.As().Fits(e.Info) {
		return e, false, Errorf("BLOCK of size %d, stored %d (%v)", e.Info.Size, e.Stored, e.Codec)
	}
	return e, known, nil
}
