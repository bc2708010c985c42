package directory

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// An entry is kept as bytes: the number of its namespace and its key, then
//
//	twice the number of records, and one if it is buried
//	buried, until               if it is
//	the records
//
// A number is a uvarint, what has a sign a varint. A record is
//
//	flags                       of what is there or holds
//	owner, incarnation
//	put stamp                   but of contents
//	version                     less the put stamp, as a varint
//	before                      if it is not 0
//	id, size, CRC32C            if there are any: 16 or 32 bytes, or none where the key is that of the id; a number; 4 bytes
//	parent                      if there is one: how much of the key it begins with, and the rest as text
//	depth
//	expires                     if it does, Unix nanoseconds
//	region, offset, generation  of memory
//	path, offset                of a segment, the number of its path
//	stored, CRC32C, codec       of one that has not the bytes as they are
//
// Nothing else reads it.

const (
	hasSegment = 1 << iota
	isPlain    // the segment has the bytes as they are
	hasInfo
	hasParent
	isPrefix
	isDead
	hasMemory
	isWide    // the id has more than 16 bytes
	isContent // the id is that of the key, the put stamp ContentSeq
	isInferred
	isBound
	hasEnd
	hasBefore
)

// appendText packs a text: its longest run of hexadecimal digits, of which keys mostly
// consist, takes half.
func appendText(b []byte, s string) []byte {
	at, n := hexRun(s)
	if n == 0 {
		b = binary.AppendUvarint(b, uint64(len(s))<<1)
		return append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(at)<<1|1)
	b = append(b, s[:at]...)
	b = binary.AppendUvarint(b, uint64(n/2))
	for ; n > 0; at, n = at+2, n-2 {
		b = append(b, digit(s[at])<<4|digit(s[at+1]))
	}
	b = binary.AppendUvarint(b, uint64(len(s)-at))
	return append(b, s[at:]...)
}

// minRun is the shortest run of digits that takes half: their number costs two bytes.
const minRun = 8

// hexRun finds the longest run of an even number of digits, the first of several.
func hexRun(s string) (at, n int) {
	for i := 0; i < len(s)-n; {
		start := i
		for i < len(s) && isDigit[s[i]] {
			i++
		}
		if run := (i - start) &^ 1; run > n && run >= minRun {
			at, n = start, run
		}
		i++
	}
	return at, n
}

const digits = "0123456789abcdef"

var isDigit = func() (is [256]bool) {
	for i := range len(digits) {
		is[digits[i]] = true
	}
	return is
}()

// pairs are the two digits of a byte, the first one in the lower half.
var pairs = func() (of [256]uint16) {
	for c := range of {
		of[c] = uint16(digits[c>>4]) | uint16(digits[c&0xf])<<8
	}
	return of
}()

// digit is the value of a digit.
func digit(c byte) byte { return c&0xf + c>>6*9 }

// unpacker reads what was packed here, so that nothing can be wrong with it.
type unpacker struct{ b []byte }

func (u *unpacker) number() uint64 {
	if n := u.b[0]; n < 0x80 {
		u.b = u.b[1:]
		return uint64(n)
	}
	n, size := binary.Uvarint(u.b)
	u.b = u.b[size:]
	return n
}

func (u *unpacker) signed() int64 {
	n := u.number()
	return int64(n>>1) ^ -int64(n&1)
}

func (u *unpacker) bytes(n int) []byte {
	b := u.b[:n]
	u.b = u.b[n:]
	return b
}

func (u *unpacker) long() uint64 { return binary.LittleEndian.Uint64(u.bytes(8)) }
func (u *unpacker) crc() uint32  { return binary.LittleEndian.Uint32(u.bytes(4)) }

// text appends a text to b.
func (u *unpacker) text(b []byte) []byte {
	head := u.number()
	b = append(b, u.bytes(int(head>>1))...)
	if head&1 == 0 {
		return b
	}
	for _, c := range u.bytes(int(u.number())) {
		b = append(b, digits[c>>4], digits[c&0xf])
	}
	return append(b, u.bytes(int(u.number()))...)
}

// isText reports whether a text is s.
func (u *unpacker) isText(s string) bool {
	head := u.number()
	n := int(head >> 1)
	if len(s) < n || s[:n] != string(u.bytes(n)) {
		return false
	}
	if s = s[n:]; head&1 == 0 {
		return s == ""
	}
	if n = int(u.number()); len(s) < 2*n {
		return false
	}
	for i, c := range u.bytes(n) {
		if two := uint16(s[2*i]) | uint16(s[2*i+1])<<8; two != pairs[c] {
			return false
		}
	}
	s = s[2*n:]
	return s == string(u.bytes(int(u.number())))
}

// packer packs entries, and unpacks them. Its fields are reused.
type packer struct {
	words *words

	b    []byte   // what was packed last
	used []uint32 // the words that this uses
	text []byte
}

// pack packs the entry of a key.
func (p *packer) pack(k key, e *entry) {
	p.b, p.used = p.b[:0], p.used[:0]
	p.word(k.namespace)
	p.b = appendText(p.b, k.name)
	if e.buried == 0 {
		p.number(uint64(len(e.records)) << 1)
	} else {
		p.number(uint64(len(e.records))<<1 | 1)
		p.long(e.buried)
		p.long(uint64(e.until))
	}
	for i := range e.records {
		p.record(k, &e.records[i])
	}
}

func (p *packer) word(s string) {
	n := p.words.use(s)
	p.used = append(p.used, n)
	p.number(uint64(n))
}

func (p *packer) number(n uint64) { p.b = binary.AppendUvarint(p.b, n) }
func (p *packer) long(n uint64)   { p.b = binary.LittleEndian.AppendUint64(p.b, n) }
func (p *packer) crc(crc uint32)  { p.b = binary.LittleEndian.AppendUint32(p.b, crc) }

func (p *packer) record(k key, r *record) {
	flags := r.flags(k)
	p.number(flags)
	p.number(uint64(r.Owner))
	p.number(r.Incarnation)
	if flags&isContent == 0 {
		p.long(r.Name.Seq)
	}
	p.b = binary.AppendVarint(p.b, int64(r.Version-r.Name.Seq))
	if flags&hasBefore != 0 {
		p.long(r.before)
	}
	if flags&hasInfo != 0 {
		switch id := r.Info.ID[:]; flags & (isWide | isContent) {
		case 0:
			p.b = append(p.b, id[:len(id)/2]...)
		case isWide:
			p.b = append(p.b, id...)
		}
		p.number(uint64(r.Info.Size))
		p.crc(r.Info.CRC)
	}
	if flags&hasParent != 0 {
		parent := r.Name.Parent
		same := 0
		for same < min(len(k.name), len(parent)) && k.name[same] == parent[same] {
			same++
		}
		p.number(uint64(same))
		p.b = appendText(p.b, parent[same:])
	}
	p.number(uint64(r.Name.Depth))
	if flags&hasEnd != 0 {
		p.long(uint64(r.Name.Expires.UnixNano()))
	}
	if m := r.Memory; m != nil {
		p.number(uint64(m.Region))
		p.number(uint64(m.Offset))
		p.long(m.Generation)
	}
	if g := r.Segment; g != nil {
		p.word(g.Path)
		p.number(uint64(g.Offset))
		if flags&isPlain == 0 {
			p.number(uint64(g.Stored))
			p.crc(g.StoredCRC)
			p.b = append(p.b, g.Codec)
		}
	}
}

func (r *record) flags(k key) (flags uint64) {
	set := func(is bool, flag uint64) {
		if is {
			flags |= flag
		}
	}
	if g := r.Segment; g != nil {
		flags |= hasSegment
		set(g.Stored == r.Info.Size && g.StoredCRC == r.Info.CRC && g.Codec == 0, isPlain)
	}
	none := block.Info{}
	if id := r.Info.ID; r.Info != none {
		flags |= hasInfo
		content := k.namespace == Contents && r.Name.Seq == ContentSeq && k.name == ContentKey(id)
		set(content, isContent)
		set(!content && !bytes.Equal(id[len(id)/2:], none.ID[len(id)/2:]), isWide)
	}
	set(r.Name.Parent != "", hasParent)
	set(r.Name.Prefix, isPrefix)
	set(r.Name.Bound, isBound)
	set(r.Name.Inferred, isInferred)
	set(!r.Name.Expires.IsZero(), hasEnd)
	set(r.dead, isDead)
	set(r.Memory != nil, hasMemory)
	set(r.before != 0, hasBefore)
	return flags
}

// unpack reads what is behind the key of an entry.
func (p *packer) unpack(e *unpacked) {
	u := unpacker{e.packed}
	n := u.number()
	if n&1 != 0 {
		e.buried, e.until = u.long(), int64(u.long())
	}
	e.records = slices.Grow(e.records, int(n>>1))[:n>>1]
	e.places = slices.Grow(e.places[:0], int(n>>1))[:n>>1]
	for i := range e.records {
		p.unpackRecord(&u, e, i)
	}
}

func (p *packer) unpackRecord(u *unpacker, e *unpacked, i int) {
	k, r, at := e.key, &e.records[i], &e.places[i]
	*r = record{}
	flags := u.number()
	r.Name.Namespace, r.Name.Key = k.namespace, k.name
	r.Owner, r.Incarnation, r.Name.Seq = fabric.Rank(u.number()), u.number(), ContentSeq
	if flags&isContent == 0 {
		r.Name.Seq = u.long()
	}
	r.Version = r.Name.Seq + uint64(u.signed())
	if flags&hasBefore != 0 {
		r.before = u.long()
	}
	if flags&hasInfo != 0 {
		switch id := r.Info.ID[:]; flags & (isWide | isContent) {
		case 0:
			copy(id, u.bytes(len(id)/2))
		case isWide:
			copy(id, u.bytes(len(id)))
		default:
			r.Info.ID, _ = ContentID(k.name)
		}
		r.Info.Size, r.Info.CRC = int64(u.number()), u.crc()
	}
	if flags&hasParent != 0 {
		p.text = u.text(append(p.text[:0], k.name[:u.number()]...))
		r.Name.Parent = string(p.text)
	}
	r.Name.Depth = uint32(u.number())
	r.Name.Prefix, r.Name.Bound, r.Name.Inferred = flags&isPrefix != 0, flags&isBound != 0, flags&isInferred != 0
	r.dead = flags&isDead != 0
	if flags&hasEnd != 0 {
		r.Name.Expires = time.Unix(0, int64(u.long()))
	}
	if flags&hasMemory != 0 {
		r.Memory = &at.memory
		*r.Memory = Memory{uint32(u.number()), int64(u.number()), u.long()}
	}
	if flags&hasSegment != 0 {
		path := uint32(u.number())
		e.used = append(e.used, path)
		r.Segment = &at.segment
		*r.Segment = Segment{Path: p.words.of(path), Offset: int64(u.number()), Stored: r.Info.Size, StoredCRC: r.Info.CRC}
		if flags&isPlain == 0 {
			r.Segment.Stored, r.Segment.StoredCRC, r.Segment.Codec = int64(u.number()), u.crc(), u.bytes(1)[0]
		}
	}
}
