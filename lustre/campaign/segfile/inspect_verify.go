package segfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
)

// payloads reads the payloads of all blocks in the tables, and with
// InspectOptions.Payloads the padding too, in the order of the file. It marks
// entries whose bytes are wrong.
func (in *inspector) payloads(tables ...[]Entry) error {
	var blocks []*Entry
	for _, table := range tables {
		for i := range table {
			if table[i].Kind == format.KindBlock {
				blocks = append(blocks, &table[i])
			}
		}
	}
	byOffset := func(a, b *Entry) int { return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Stored, b.Stored)) }
	if !slices.IsSortedFunc(blocks, byOffset) {
		slices.SortStableFunc(blocks, byOffset)
	}
	in.win.straight = in.o.Payloads
	defer func() { in.win.straight = false }()
	pads, end := in.pads, int64(0)
	if !in.o.Payloads {
		pads = nil
	}
	for _, e := range blocks {
		for len(pads) > 0 && pads[0].off < e.Off {
			if err := in.pad(pads[0]); err != nil {
				return err
			}
			pads = pads[1:]
		}
		if err := in.payload(e); err != nil {
			return err
		}
		if e.Off < end && e.Stored > 0 && !e.Bad {
			e.Bad = true
			in.lost(BadEntry, e, "its payload overlaps another")
		}
		end = max(end, e.Off+e.Stored)
	}
	for _, x := range pads {
		if err := in.pad(x); err != nil {
			return err
		}
	}
	return nil
}

func (in *inspector) pad(x extent) error {
	zero := true
	err := in.win.each(x.off, x.len, func(p []byte) { zero = zero && IsZero(p) })
	if err == nil && !zero {
		in.damage(BadPadding, x.off, x.len, "padding is not zero; no block is lost")
	}
	return err
}

func (in *inspector) payload(e *Entry) error {
	off := e.Off
	found, err := in.verifier.payload(e, func(n int64, fn func([]byte)) error {
		at := off
		off += n
		return in.win.each(at, n, fn)
	})
	if err != nil {
		return err
	}
	if e.Info.ID.IsZero() || e.Info.ID.IsProvisional() {
		found.kind, found.why = BadEntry, "no block has this id"
	}
	if e.Bad, e.torn = found.kind != "", found.torn && e.Known(); e.Bad {
		in.lost(found.kind, e, found.why)
	}
	return nil
}

// verifier checks payloads. It makes its Coder when it is first used.
type verifier struct {
	ids   bool
	coder *codec.Coder
}

// flaw is what is wrong with a payload.
type flaw struct {
	kind, why string // empty: nothing
	torn      bool   // its checksum is wrong
}

// payload checks that of e, which each delivers, so many bytes at a time: its
// checksum and, where ids are wanted, what it decodes to.
func (v *verifier) payload(e *Entry, each func(n int64, fn func([]byte)) error) (found flaw, err error) {
	var crc uint32
	left := e.Stored
	next := func(n int64, fn func([]byte)) error {
		left -= n
		return each(n, func(p []byte) {
			crc = block.ExtendCRC(crc, p)
			fn(p)
		})
	}
	write := func([]byte) {}
	var hash *block.Hasher
	if v.ids && e.Known() {
		bits := block.Bits256
		if [16]byte(e.Info.ID[16:]) == [16]byte{} {
			bits = block.Bits128
		}
		hash = block.NewHasher(bits)
		write = func(p []byte) { hash.Write(p) }
	}
	why := ""
	if hash != nil && e.Codec != codec.None {
		why, err = v.decode(e, write, func(p []byte) error {
			return next(int64(len(p)), func(q []byte) { p = p[copy(p, q):] })
		})
	}
	if err == nil {
		err = next(left, write)
	}
	switch {
	case err != nil:
		return flaw{}, err
	case crc != e.StoredCRC:
		return flaw{BadPayload, fmt.Sprintf("CRC32C %08x, want %08x", crc, e.StoredCRC), true}, nil
	case why != "":
		return flaw{BadPayload, why, false}, nil
	case hash != nil && hash.ID() != e.Info.ID:
		return flaw{BadID, fmt.Sprintf("its bytes are those of block %v", hash.ID()), false}, nil
	}
	return flaw{}, nil
}

// decode hands the block whose payload read delivers to write. why is what is
// wrong with the payload, err that it could not be looked at.
func (v *verifier) decode(e *Entry, write func([]byte), read func([]byte) error) (why string, err error) {
	if v.coder == nil {
		if v.coder, err = codec.New(codec.Options{Workers: 1}); err != nil {
			return "", err
		}
	}
	var crc uint32
	err = v.coder.DecodeFrom(e.Codec, int(e.Info.Size), int(e.Stored), read, func(p []byte) {
		crc = block.ExtendCRC(crc, p)
		write(p)
	})
	switch {
	case errors.Is(err, codec.ErrCorrupt):
		return err.Error(), nil
	case err == nil && crc != e.Info.CRC:
		return fmt.Sprintf("CRC32C of the block %08x, want %08x", crc, e.Info.CRC), nil
	}
	return "", err
}

func (in *inspector) lost(kind string, e *Entry, why string) {
	in.v.Damage = append(in.v.Damage, Damage{
		Kind: kind, Off: e.Off, Len: e.Stored, ID: e.Info.ID,
		What: fmt.Sprintf("block %v of %d bytes: %s", e.Info.ID, e.Stored, why),
	})
}

// conclude turns gaps and tail into damage and names the state.
func (in *inspector) conclude() {
	v := in.v
	for _, g := range in.gaps {
		in.damage(BadFrame, g.off, g.len, "frames %d to %d: %v", g.from, g.to-1, g.why)
	}
	torn := false
	switch {
	case in.tail == in.end:
	case in.sealed || in.remains:
		in.damage(BadFrame, in.tail, in.end-in.tail, "the last frames, from number %d on: %v", in.lastNumber(), in.tailErr)
	default:
		torn = true
		in.damage(BadTail, in.tail, in.v.Size-in.tail,
			"what follows frame %d does not count: %v; a crash leaves such a tail, and nothing in it was promised", int64(in.lastNumber())-1, in.tailErr)
	}
	if !in.sealed {
		for _, fr := range in.frames {
			v.Unknown += fr.unknown
		}
	}
	v.Frames = len(in.frames)
	switch {
	case v.Header == nil:
		v.State = StateClosed
	case in.sealed:
		v.State = StateSealed
	case torn || in.remains || len(in.gaps) > 0:
		v.State = StateTorn
	default:
		v.State = StateOpen
	}
	slices.SortStableFunc(v.Damage, func(a, b Damage) int { return cmp.Compare(a.Off, b.Off) })
}

// lastNumber is the number of the first frame behind the intact ones.
func (in *inspector) lastNumber() uint64 {
	if len(in.frames) == 0 {
		return 0
	}
	return in.frames[len(in.frames)-1].number + 1
}
