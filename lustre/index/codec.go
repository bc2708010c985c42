package index

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"cascadekv/internal/block"
)

// Kinds of keys, their first byte, and sizes (docs/format.md §5).
const (
	kindSegment = 1
	kindBlock   = 2
	kindName    = 3
	kindSpace   = 4
	kindStray   = 5

	prefixSize  = 17 // kind and 16 bytes: what filters know
	nameKeySize = 21

	strayKeySize = 33

	segmentRowSize = 80
	linkSize       = 21
	nameHeadSize   = 46
	spaceHeadSize  = 44
	placeFixed     = 9 // segment number, CRC, codec
)

// never is the end of a name that has none.
const never = math.MaxUint64

// Flags of name records.
const (
	flagPrefix  = 1
	flagBound   = 2
	flagExpires = 4
	flagDropped = 8
	flagWide    = 16 // a 256-bit block id
	flagCopy    = 32
	flagAlone   = 64  // it lies in no run, and its depth in the record
	flagLink    = 128 // no record but a link

	flagInferred = 256
	flagHides    = 512
	flagOutlived = 1024

	knownFlags = flagPrefix | flagBound | flagExpires | flagDropped | flagWide | flagCopy | flagAlone | flagInferred | flagHides | flagOutlived
)

// alone is the position of what lies in no run: a link, or a name whose own run
// is taken by others.
const alone = 0

// maxNote bounds the caller's bytes in the record of a name, maxText a
// namespace's text.
const (
	maxNote = 4096
	maxText = 64 << 10
)

// maxDepth is the deepest a name can lie: positions are depths plus 1.
const maxDepth = math.MaxUint32 - 1

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// spot is where a name lies. Of names in runs the position is the depth plus 1.
type spot struct {
	run Key
	pos uint32
}

// place is a Place with its segment's number.
type place struct {
	segment   uint32
	offset    int64
	size      int64
	stored    int64
	crc       uint32
	storedCRC uint32
	codec     uint8
}

// blockRecord is the value of a block's key.
type blockRecord struct {
	owner Key
	place place
}

// nameRecord is the value of a name's key.
type nameRecord struct {
	flags   uint16
	key     Key
	segment uint32 // of the NAME or DROP
	seq     uint64
	id      block.ID
	expires time.Time
	depth   uint32 // with flagAlone
	copy    place  // with flagCopy
	note    string
}

// segmentRow is the value of a segment's key.
type segmentRow struct {
	segment Segment
	dead    bool
	mark    uint64
	entries uint64

	// What of entries is not a repetition (docs/format.md §5.3).
	blocks, names, bytes, stale, ends uint64
}

func appendSegmentKey(p []byte, number uint32) []byte {
	return be.AppendUint32(append(p, kindSegment), number)
}

func decodeSegmentKey(p []byte) (uint32, error) {
	if len(p) != 5 || p[0] != kindSegment {
		return 0, badFormat("segment key of %d bytes", len(p))
	}
	return be.Uint32(p[1:]), nil
}

func appendBlockKey(p []byte, id block.ID) []byte {
	if isWide(id) {
		return append(append(p, kindBlock), id[:]...)
	}
	return append(append(p, kindBlock), id[:16]...)
}

// appendStrays appends what the keys of all strays of a block begin with.
func appendStrays(p []byte, id block.ID) []byte { return append(append(p, kindStray), id[:16]...) }

func appendStrayKey(p []byte, id block.ID, name Key) []byte {
	return append(appendStrays(p, id), name[:]...)
}

// decodeStrayKey returns the first half of the block's id, and the name.
func decodeStrayKey(p []byte) (half [16]byte, name Key, err error) {
	if len(p) != strayKeySize || p[0] != kindStray {
		return half, name, badFormat("stray key of %d bytes", len(p))
	}
	return [16]byte(p[1:]), Key(p[prefixSize:]), nil
}

func appendSpaceKey(p []byte, ns Namespace) []byte { return append(append(p, kindSpace), ns[:]...) }

func appendSpace(p []byte, s Space) []byte {
	p = s.Layout.AppendNumbers(le.AppendUint64(p, s.Seq))
	p = le.AppendUint32(p, uint32(len(s.Layout.DType)))
	return append(append(p, s.Layout.DType...), s.Text...)
}

func decodeSpace(p []byte) (s Space, err error) {
	if len(p) < spaceHeadSize {
		return s, badFormat("namespace in %d bytes", len(p))
	}
	s.Seq = le.Uint64(p)
	s.Layout.SetNumbers(p[8:])
	dtype, text := le.Uint32(p[40:]), p[spaceHeadSize:]
	if int64(dtype) > int64(len(text)) {
		return s, badFormat("a dtype of %d bytes in %d", dtype, len(text))
	}
	s.Layout.DType, s.Text = string(text[:dtype]), string(text[dtype:])
	if err := s.Layout.Check(); err != nil || len(s.Text) > maxText {
		return s, badFormat("namespace of %d bytes: %v", len(s.Text), err)
	}
	return s, nil
}

func isWide(id block.ID) bool { return [16]byte(id[16:]) != [16]byte{} }

// appendRun appends what the keys of all names of a run begin with.
func appendRun(p []byte, run Key) []byte { return append(append(p, kindName), run[:]...) }

func appendNameKey(p []byte, at spot) []byte { return be.AppendUint32(appendRun(p, at.run), at.pos) }

func decodeNameKey(p []byte) (at spot, err error) {
	if len(p) != nameKeySize || p[0] != kindName {
		return at, badFormat("name key of %d bytes", len(p))
	}
	return spot{run: Key(p[1:17]), pos: be.Uint32(p[17:])}, nil
}

func appendLink(p []byte, to spot) []byte {
	return be.AppendUint32(append(append(p, flagLink), to.run[:]...), to.pos)
}

func isLink(p []byte) bool { return len(p) > 0 && p[0] == flagLink }

func decodeLink(p []byte) (to spot, err error) {
	if len(p) != linkSize || !isLink(p) {
		return to, badFormat("link of %d bytes", len(p))
	}
	if to = (spot{run: Key(p[1:17]), pos: be.Uint32(p[17:])}); to.pos == alone {
		return to, badFormat("link to a link")
	}
	return to, nil
}

func appendSegmentRow(p []byte, r segmentRow) []byte {
	dead := byte(0)
	if r.dead {
		dead = 1
	}
	p = append(p, 2, dead, 0, 0)
	p = le.AppendUint32(p, r.segment.Rank)
	for _, v := range []uint64{r.segment.Incarnation, r.segment.File, r.mark, r.entries, r.blocks, r.names, r.bytes, r.stale, r.ends} {
		p = le.AppendUint64(p, v)
	}
	return p
}

func decodeSegmentRow(p []byte) (r segmentRow, err error) {
	if len(p) != segmentRowSize || p[0] != 2 || p[1] > 1 {
		return r, badFormat("segment row of %d bytes", len(p))
	}
	r.segment = Segment{Rank: le.Uint32(p[4:]), Incarnation: le.Uint64(p[8:]), File: le.Uint64(p[16:])}
	r.dead, r.mark, r.entries = p[1] == 1, le.Uint64(p[24:]), le.Uint64(p[32:])
	r.blocks, r.names, r.bytes, r.stale = le.Uint64(p[40:]), le.Uint64(p[48:]), le.Uint64(p[56:]), le.Uint64(p[64:])
	r.ends = le.Uint64(p[72:])
	return r, nil
}

func appendPlace(p []byte, at place) []byte {
	p = le.AppendUint32(le.AppendUint32(p, at.segment), at.crc)
	p = append(p, at.codec)
	p = binary.AppendUvarint(p, uint64(at.offset))
	p = binary.AppendUvarint(p, uint64(at.size))
	if at.codec != 0 {
		p = binary.AppendUvarint(p, uint64(at.stored))
		p = le.AppendUint32(p, at.storedCRC)
	}
	return p
}

// decodePlace reads a place that takes all of p.
func decodePlace(p []byte) (place, error) {
	at, rest, err := cutPlace(p)
	if err == nil && len(rest) != 0 {
		err = badFormat("%d bytes behind a place", len(rest))
	}
	return at, err
}

// cutPlace reads the place that p begins with, and returns the rest of p.
func cutPlace(p []byte) (at place, rest []byte, err error) {
	if len(p) < placeFixed {
		return at, nil, badFormat("place of %d bytes", len(p))
	}
	at.segment, at.crc, at.codec = le.Uint32(p), le.Uint32(p[4:]), p[8]
	if at.offset, p, err = cutNumber(p[placeFixed:]); err != nil {
		return at, nil, err
	}
	if at.size, p, err = cutNumber(p); err != nil {
		return at, nil, err
	}
	at.stored, at.storedCRC = at.size, at.crc
	if at.codec != 0 {
		if at.stored, p, err = cutNumber(p); err != nil {
			return at, nil, err
		}
		if len(p) < 4 {
			return at, nil, badFormat("%d bytes where a CRC should be", len(p))
		}
		at.storedCRC, p = le.Uint32(p), p[4:]
	}
	if at.size > block.MaxSize {
		return at, nil, badFormat("place of %d bytes", at.size)
	}
	return at, p, nil
}

// cutNumber reads a number in its shortest form, so that equal values have
// equal bytes.
func cutNumber(p []byte) (int64, []byte, error) {
	v, n := binary.Uvarint(p)
	if n <= 0 || v > math.MaxInt64 || n > 1 && p[n-1] == 0 {
		return 0, nil, badFormat("no number in %d bytes", len(p))
	}
	return int64(v), p[n:], nil
}

func appendBlockRecord(p []byte, r blockRecord) []byte {
	return appendPlace(append(p, r.owner[:]...), r.place)
}

func decodeBlockRecord(p []byte) (r blockRecord, err error) {
	if len(p) < len(r.owner) {
		return r, badFormat("block record of %d bytes", len(p))
	}
	copy(r.owner[:], p)
	r.place, err = decodePlace(p[len(r.owner):])
	return r, err
}

// appendNameRecord derives the flags for the form from the fields.
func appendNameRecord(p []byte, r nameRecord) []byte {
	if isWide(r.id) {
		r.flags |= flagWide
	}
	if !r.expires.IsZero() {
		r.flags |= flagExpires
	}
	p = append(le.AppendUint16(p, r.flags), r.key[:]...)
	p = le.AppendUint64(le.AppendUint32(p, r.segment), r.seq)
	p = append(p, r.id[:16]...)
	if r.flags&flagWide != 0 {
		p = append(p, r.id[16:]...)
	}
	if r.flags&flagExpires != 0 {
		p = le.AppendUint64(p, uint64(r.expires.Unix()))
		p = le.AppendUint32(p, uint32(r.expires.Nanosecond()))
	}
	if r.flags&flagAlone != 0 {
		p = le.AppendUint32(p, r.depth)
	}
	if r.flags&flagCopy != 0 {
		p = appendPlace(p, r.copy)
	}
	return append(p, r.note...)
}

// names reports whether a record, as it is stored, is that of k.
func names(p []byte, k Key) bool { return len(p) >= nameHeadSize && bytes.Equal(p[2:18], k[:]) }

func decodeNameRecord(p []byte) (nameRecord, error) {
	r, note, err := cutNameRecord(p)
	if err == nil {
		r.note = string(note)
	}
	return r, err
}

// cutNameRecord is decodeNameRecord but for the note, which is the end of p.
func cutNameRecord(p []byte) (r nameRecord, note []byte, err error) {
	if len(p) < nameHeadSize || le.Uint16(p)&^knownFlags != 0 {
		return r, nil, badFormat("name record of %d bytes", len(p))
	}
	r.flags, r.key, r.segment, r.seq = le.Uint16(p), Key(p[2:18]), le.Uint32(p[18:]), le.Uint64(p[22:])
	copy(r.id[:], p[30:46])
	p = p[nameHeadSize:]
	if r.flags&flagWide != 0 {
		if len(p) < 16 || [16]byte(p) == [16]byte{} {
			return r, nil, badFormat("half an id in %d bytes", len(p))
		}
		p = p[copy(r.id[16:], p):]
	}
	if r.flags&flagExpires != 0 {
		if len(p) < 12 || le.Uint32(p[8:]) >= 1e9 {
			return r, nil, badFormat("expiry in %d bytes", len(p))
		}
		r.expires, p = time.Unix(int64(le.Uint64(p)), int64(le.Uint32(p[8:]))).UTC(), p[12:]
		if r.expires.IsZero() {
			return r, nil, badFormat("expiry at the zero time")
		}
	}
	if r.flags&flagAlone != 0 {
		if len(p) < 4 {
			return r, nil, badFormat("depth in %d bytes", len(p))
		}
		r.depth, p = le.Uint32(p), p[4:]
	}
	if r.flags&flagCopy != 0 {
		if r.copy, p, err = cutPlace(p); err != nil {
			return r, nil, err
		}
	}
	if len(p) > maxNote {
		return r, nil, badFormat("a note of %d bytes", len(p))
	}
	return r, p, nil
}
