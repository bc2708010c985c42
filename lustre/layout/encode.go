package layout

import (
	"encoding/binary"
	"math"
)

// le is Lustre's order of bytes on every machine that Go and Lustre share: it
// uses the machine's own.
var le = binary.LittleEndian

// Encode makes the bytes that ask for l: those that lfs passes to the kernel.
// An invalid layout gives the errors of Validate, the zero layout ErrNoLayout.
func (l Layout) Encode() ([]byte, error) {
	if l.IsZero() {
		return nil, ErrNoLayout
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if !l.Composite() {
		return l.Components[0].append(nil), nil
	}
	head := sizeComp + sizeEntry*len(l.Components)
	b := make([]byte, head, head+sizeV3*len(l.Components))
	start := int64(0)
	for i, c := range l.Components {
		off := len(b)
		b = c.append(b)
		entry := b[sizeComp+sizeEntry*i:]
		le.PutUint64(entry[8:], uint64(start))
		le.PutUint64(entry[16:], uint64(c.End)) // EOF is all ones there too
		le.PutUint32(entry[24:], uint32(off))
		le.PutUint32(entry[28:], uint32(len(b)-off))
		start = c.End
	}
	le.PutUint32(b, magicComp)
	le.PutUint32(b[4:], uint32(len(b)))
	le.PutUint16(b[14:], uint16(len(l.Components)))
	return b, nil
}

// append adds the bytes of one component.
func (c Component) append(b []byte) []byte {
	magic, size := uint32(magicV1), sizeV1
	if c.Pool != "" {
		magic, size = magicV3, sizeV3
	}
	p := make([]byte, size)
	pattern, stripe := uint32(patternRAID0), c.Size
	if c.Overstripe {
		pattern |= patternOverstripe
	}
	if c.OnMDT {
		pattern, stripe = patternMDT, c.End
	}
	le.PutUint32(p, magic)
	le.PutUint32(p[4:], pattern)
	le.PutUint32(p[24:], uint32(stripe))
	le.PutUint16(p[28:], uint16(int16(c.Count)))
	le.PutUint16(p[30:], anyOffset)
	copy(p[32:], c.Pool)
	return append(b, p...)
}

// Decode reads the bytes of lustre.lov, of a file or of a directory's default.
// Errors match ErrBadLayout.
func Decode(b []byte) (Granted, error) {
	if len(b) < 4 {
		return Granted{}, badLayout("%d bytes", len(b))
	}
	switch magic := le.Uint32(b); magic {
	case magicV1, magicV3, magicSpecific:
		part, err := decodePart(b)
		return Granted{Mirrors: 1, Parts: []Part{part}}, err
	case magicComp, magicSEL:
		return decodeComposite(b)
	case magicForeign:
		return Granted{}, badLayout("a foreign layout: the file's bytes lie outside Lustre")
	default:
		return Granted{}, badLayout("unknown magic %#08x", magic)
	}
}

func decodeComposite(b []byte) (Granted, error) {
	if len(b) < sizeComp {
		return Granted{}, badLayout("%d bytes of a composite layout", len(b))
	}
	size, count := le.Uint32(b[4:]), int(le.Uint16(b[14:]))
	if uint64(size) > uint64(len(b)) || count == 0 || sizeComp+sizeEntry*count > len(b) {
		return Granted{}, badLayout("%d components and %d bytes in %d", count, size, len(b))
	}
	g := Granted{Composite: true, Generation: le.Uint32(b[8:]), Mirrors: int(le.Uint16(b[16:])) + 1}
	for i := range count {
		entry := b[sizeComp+sizeEntry*i:]
		off, length := uint64(le.Uint32(entry[24:])), uint64(le.Uint32(entry[28:]))
		if off+length > uint64(len(b)) {
			return Granted{}, badLayout("component %d lies at %d+%d of %d bytes", i, off, length, len(b))
		}
		part, err := decodePart(b[off : off+length])
		if err != nil {
			return Granted{}, err
		}
		part.ID, part.Flags = le.Uint32(entry), le.Uint32(entry[4:])
		start, end := le.Uint64(entry[8:]), le.Uint64(entry[16:])
		if start > math.MaxInt64 || end > math.MaxInt64 && end != eofEnd {
			return Granted{}, badLayout("component %d from %#x to %#x", i, start, end)
		}
		part.Start, part.End = int64(start), int64(end)
		if part.Flags&flagExtension != 0 {
			part.Size *= extensionKiB
		}
		g.Parts = append(g.Parts, part)
	}
	return g, nil
}

// decodePart reads one v1 or v3 structure with the objects behind it.
func decodePart(b []byte) (Part, error) {
	if len(b) < sizeV1 {
		return Part{}, badLayout("%d bytes of stripes", len(b))
	}
	head := sizeV1
	switch magic := le.Uint32(b); magic {
	case magicV1:
	case magicV3, magicSpecific:
		if head = sizeV3; len(b) < head {
			return Part{}, badLayout("%d bytes of stripes with a pool", len(b))
		}
	default:
		return Part{}, badLayout("stripes with the magic %#08x", magic)
	}
	p := Part{Pattern: le.Uint32(b[4:]), Generation: le.Uint16(b[30:])}
	p.Size, p.Count = int64(le.Uint32(b[24:])), int(le.Uint16(b[28:]))
	if p.Count >= manyStripes {
		p.Count -= 1 << 16
	}
	p.Overstripe = p.Pattern&patternOverstripe != 0
	p.OnMDT = p.Pattern&patternMDT != 0
	if head == sizeV3 {
		p.Pool = zeroEnded(b[32:48])
	}
	if (len(b)-head)%sizeObject != 0 {
		return Part{}, badLayout("%d bytes of objects", len(b)-head)
	}
	for rest := b[head:]; len(rest) > 0; rest = rest[sizeObject:] {
		p.Objects = append(p.Objects, decodeObject(rest))
	}
	return p, nil
}

// decodeObject reads a FID. Objects of Lustre 1.x have their id where others
// have the sequence, and no sequence.
func decodeObject(b []byte) Object {
	o := Object{Seq: le.Uint64(b), ID: uint64(le.Uint32(b[8:])), OST: int(le.Uint32(b[20:]))}
	if le.Uint64(b[8:]) == 0 {
		o.ID, o.Seq = o.Seq, 0
	}
	return o
}

func zeroEnded(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
