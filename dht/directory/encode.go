package directory

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/vmihailenco/msgpack/v5"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// ErrBadStatement marks bytes that are no statement.
var ErrBadStatement = errors.New("directory: bad statement")

// The arrays of docs/protocol.md, "Between ranks: messages".
const (
	statementFields = 15
	memoryFields    = 3
	segmentFields   = 5
)

// MinStatement is the least that a statement has on the wire, in bytes.
const MinStatement = 1 + statementFields

const (
	flagPrefix = 1 << iota
	flagBound
)

// EncodeMsgpack implements msgpack.CustomEncoder.
func (s *Statement) EncodeMsgpack(enc *msgpack.Encoder) error {
	var id []byte
	if !s.Info.ID.IsZero() {
		id = s.Info.ID[:]
	}
	var expires int64
	if !s.Name.Expires.IsZero() {
		expires = s.Name.Expires.UnixNano()
	}
	var flags uint64
	if s.Name.Prefix {
		flags |= flagPrefix
	}
	if s.Name.Bound {
		flags |= flagBound
	}
	parent, depth := s.Name.Parent, s.Name.Depth
	if s.Name.Inferred { // of its owner alone
		parent, depth = "", 0
	}
	return errors.Join(
		enc.EncodeArrayLen(statementFields),
		enc.EncodeString(s.Name.Namespace), enc.EncodeString(s.Name.Key), enc.EncodeString(parent),
		enc.EncodeUint(uint64(depth)), enc.EncodeUint(flags),
		enc.EncodeUint(s.Name.Seq), enc.EncodeInt(expires),
		enc.EncodeBytes(id), enc.EncodeInt(s.Info.Size), enc.EncodeUint(uint64(s.Info.CRC)),
		enc.EncodeUint(uint64(s.Owner)), enc.EncodeUint(s.Incarnation), enc.EncodeUint(s.Version),
		s.Memory.encode(enc), s.Segment.encode(enc),
	)
}

func (m *Memory) encode(enc *msgpack.Encoder) error {
	if m == nil {
		return enc.EncodeNil()
	}
	return errors.Join(enc.EncodeArrayLen(memoryFields),
		enc.EncodeUint(uint64(m.Region)), enc.EncodeInt(m.Offset), enc.EncodeUint(m.Generation))
}

func (g *Segment) encode(enc *msgpack.Encoder) error {
	if g == nil {
		return enc.EncodeNil()
	}
	return errors.Join(enc.EncodeArrayLen(segmentFields),
		enc.EncodeString(g.Path), enc.EncodeInt(g.Offset), enc.EncodeInt(g.Stored), enc.EncodeUint(uint64(g.StoredCRC)), enc.EncodeUint(uint64(g.Codec)))
}

// DecodeMsgpack implements msgpack.CustomDecoder. Errors match ErrBadStatement.
func (s *Statement) DecodeMsgpack(dec *msgpack.Decoder) error {
	r := reader{dec: dec}
	*s = r.statement()
	if r.err == nil {
		r.err = s.check()
	}
	if r.err != nil {
		*s = Statement{}
		if !errors.Is(r.err, ErrBadStatement) {
			r.err = fmt.Errorf("%w: %w", ErrBadStatement, r.err)
		}
	}
	return r.err
}

// reader reads fields until the first error. What it allocates is bounded by
// what a statement may have, not by lengths on the wire.
type reader struct {
	dec *msgpack.Decoder
	err error
}

func (r *reader) statement() (s Statement) {
	if r.array(statementFields) {
		r.fail("no statement")
	}
	s.Name.Namespace, s.Name.Key, s.Name.Parent = r.text(), r.text(), r.text()
	s.Name.Depth = uint32(r.uint(math.MaxUint32))
	flags := r.uint(flagPrefix | flagBound)
	s.Name.Prefix, s.Name.Bound = flags&flagPrefix != 0, flags&flagBound != 0
	s.Name.Seq = r.uint(math.MaxUint64)
	if at := r.int(); at != 0 {
		s.Name.Expires = time.Unix(0, at)
	}
	s.Info.ID = r.id()
	s.Info.Size, s.Info.CRC = r.int(), uint32(r.uint(math.MaxUint32))
	s.Owner = fabric.Rank(r.uint(math.MaxUint32))
	s.Incarnation, s.Version = r.uint(math.MaxUint64), r.uint(math.MaxUint64)
	if !r.array(memoryFields) && r.err == nil {
		s.Memory = &Memory{uint32(r.uint(math.MaxUint32)), r.int(), r.uint(math.MaxUint64)}
	}
	if !r.array(segmentFields) && r.err == nil {
		s.Segment = &Segment{r.text(), r.int(), r.int(), uint32(r.uint(math.MaxUint32)), uint8(r.uint(math.MaxUint8))}
	}
	return s
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrBadStatement, what)
	}
}

// array reads the head of an array of so many fields, or nil.
func (r *reader) array(fields int) (isNil bool) {
	if r.err != nil {
		return false
	}
	var n int
	if n, r.err = r.dec.DecodeArrayLen(); r.err != nil {
		return false
	}
	if n != fields && n != -1 {
		r.fail(fmt.Sprintf("%d fields, want %d", n, fields))
	}
	return n == -1
}

func (r *reader) uint(most uint64) (n uint64) {
	if r.err == nil {
		n, r.err = r.dec.DecodeUint64()
	}
	if n > most {
		r.fail(fmt.Sprintf("%d where at most %d fits", n, most))
	}
	return n
}

func (r *reader) int() (n int64) {
	if r.err == nil {
		n, r.err = r.dec.DecodeInt64()
	}
	return n
}

func (r *reader) text() (s string) {
	if r.err == nil {
		s, r.err = DecodeText(r.dec)
	}
	return s
}

func (r *reader) id() (id block.ID) {
	if r.err != nil {
		return id
	}
	var n int
	n, r.err = r.dec.DecodeBytesLen()
	switch {
	case r.err != nil || n <= 0:
	case n != len(id):
		r.fail(fmt.Sprintf("an id of %d bytes", n))
	default:
		b := make([]byte, n)
		r.err = r.dec.ReadFull(b)
		copy(id[:], b)
	}
	return id
}

// DecodeText reads a string of at most block.MaxKey bytes: a namespace, a key,
// a path. Errors match ErrBadStatement.
func DecodeText(dec *msgpack.Decoder) (string, error) {
	n, err := dec.DecodeBytesLen()
	if err == nil && n > block.MaxKey {
		err = fmt.Errorf("a name of %d bytes, at most %d", n, block.MaxKey)
	}
	if err == nil && n > 0 {
		b := make([]byte, n)
		if err = dec.ReadFull(b); err == nil {
			return unsafe.String(&b[0], n), nil // nobody else has b
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadStatement, err)
	}
	return "", nil
}

// check refuses what no rank states.
func (s *Statement) check() error {
	switch {
	case s.Info.Size < 0 || s.Info.Size > block.MaxSize:
		return fmt.Errorf("%w: a block of %d bytes", ErrBadStatement, s.Info.Size)
	case s.Has() && s.Info.ID.IsZero():
		return fmt.Errorf("%w: a copy without an id", ErrBadStatement)
	case s.Memory != nil && s.Memory.Offset < 0:
		return fmt.Errorf("%w: a place at %d", ErrBadStatement, s.Memory.Offset)
	case s.Segment != nil && (s.Segment.Offset < 0 || s.Segment.Stored < 0):
		return fmt.Errorf("%w: %d bytes of segment %.40q at %d", ErrBadStatement, s.Segment.Stored, s.Segment.Path, s.Segment.Offset)
	}
	return nil
}
