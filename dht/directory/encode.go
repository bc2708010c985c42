package directory

import (
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// ErrBadStatement marks bytes that are no statement.
var ErrBadStatement = errors.New("directory: bad statement")

// wire is a statement as docs/protocol.md has it.
type wire struct {
	_msgpack struct{} `msgpack:",as_array"`

	Namespace, Key, Parent string
	Depth                  uint32
	Flags                  uint8
	Stamp                  uint64
	Expires                int64 // Unix nanoseconds, 0: never
	ID                     []byte
	Size                   int64
	CRC                    uint32
	Owner                  uint32
	Incarnation, Version   uint64
	Memory                 *Memory
	Segment                *Segment
}

const (
	flagPrefix = 1 << iota
	flagBound
)

// EncodeMsgpack implements msgpack.CustomEncoder.
func (s *Statement) EncodeMsgpack(enc *msgpack.Encoder) error {
	w := wire{
		Namespace: s.Name.Namespace, Key: s.Name.Key, Parent: s.Name.Parent, Depth: s.Name.Depth,
		Stamp: s.Name.Seq, Size: s.Info.Size, CRC: s.Info.CRC,
		Owner: uint32(s.Owner), Incarnation: s.Incarnation, Version: s.Version,
		Memory: s.Memory, Segment: s.Segment,
	}
	if !s.Info.ID.IsZero() {
		w.ID = s.Info.ID[:]
	}
	if s.Name.Prefix {
		w.Flags |= flagPrefix
	}
	if s.Name.Bound {
		w.Flags |= flagBound
	}
	if !s.Name.Expires.IsZero() {
		w.Expires = s.Name.Expires.UnixNano()
	}
	return enc.Encode(&w)
}

// DecodeMsgpack implements msgpack.CustomDecoder. Errors match ErrBadStatement.
func (s *Statement) DecodeMsgpack(dec *msgpack.Decoder) error {
	var w wire
	if err := dec.Decode(&w); err != nil {
		return fmt.Errorf("%w: %w", ErrBadStatement, err)
	}
	if err := w.check(); err != nil {
		return err
	}
	*s = Statement{
		Name: block.Name{
			Namespace: w.Namespace, Key: w.Key, Parent: w.Parent, Depth: w.Depth,
			Prefix: w.Flags&flagPrefix != 0, Bound: w.Flags&flagBound != 0, Seq: w.Stamp,
		},
		Info:  block.Info{Size: w.Size, CRC: w.CRC},
		Owner: fabric.Rank(w.Owner), Incarnation: w.Incarnation, Version: w.Version,
		Memory: w.Memory, Segment: w.Segment,
	}
	copy(s.Info.ID[:], w.ID)
	if w.Expires != 0 {
		s.Name.Expires = time.Unix(0, w.Expires)
	}
	return nil
}

// check refuses what no rank says.
func (w *wire) check() error {
	switch {
	case len(w.Namespace) > block.MaxKey || len(w.Key) > block.MaxKey || len(w.Parent) > block.MaxKey:
		return fmt.Errorf("%w: a name of more than %d bytes", ErrBadStatement, block.MaxKey)
	case w.Size < 0 || w.Size > block.MaxSize:
		return fmt.Errorf("%w: a block of %d bytes", ErrBadStatement, w.Size)
	case len(w.ID) != 0 && len(w.ID) != len(block.ID{}):
		return fmt.Errorf("%w: an id of %d bytes", ErrBadStatement, len(w.ID))
	case (w.Memory != nil || w.Segment != nil) && len(w.ID) == 0:
		return fmt.Errorf("%w: a copy without an id", ErrBadStatement)
	case w.Memory != nil && w.Memory.Offset < 0:
		return fmt.Errorf("%w: a place at %d", ErrBadStatement, w.Memory.Offset)
	case w.Segment != nil && (w.Segment.Base < 0 || w.Segment.Record < 0 || len(w.Segment.Path) > block.MaxKey):
		return fmt.Errorf("%w: segment %.40q at %d, record %d", ErrBadStatement, w.Segment.Path, w.Segment.Base, w.Segment.Record)
	}
	return nil
}
