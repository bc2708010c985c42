package nvme

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"cascadekv/internal/block"
)

// Kinds of notes in the store's log; docs/gpu-store.md §6 has their bytes.
const (
	noteBlock  = 1 // a stay is of this block
	noteGone   = 2 // a stay has ended
	noteName   = 3 // a name points to the block of a stay
	noteUnlink = 4 // records of a name below a Seq are withdrawn
	noteLayout = 5 // how the blocks of a namespace are made
)

// Sizes of notes, of the last three without their texts.
const (
	noteBlockBytes  = 64
	noteGoneBytes   = 32
	noteNameBytes   = 44
	noteUnlinkBytes = 16
	noteLayoutBytes = 48
)

// Flags of a noteName.
const (
	flagPrefix = 1 << iota
	flagBound
	flagInferred
	flagsKnown = flagPrefix | flagBound | flagInferred
)

// stay is one time that a block is in the tier: drawn anew for each, and the same until it ends, also after a
// restart and a Rename.
type stay [16]byte

func newStay() stay {
	for {
		var s stay
		binary.LittleEndian.PutUint64(s[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(s[8:], rand.Uint64())
		if s.generation() != 0 {
			return s
		}
	}
}

// generation is what tiers.Place calls the stay.
func (s stay) generation() uint64 { return binary.LittleEndian.Uint64(s[:8]) }

// part returns under which id the store has a part of the block.
func (s stay) part(number int64) block.ID {
	var p [len(s) + 8]byte
	copy(p[:], s[:])
	binary.LittleEndian.PutUint64(p[len(s):], uint64(number))
	return sha256.Sum256(p[:])
}

// note is a decoded note. Which fields count depends on its kind.
type note struct {
	kind   uint8
	stay   stay
	info   block.Info
	name   block.Name // of a noteUnlink Namespace, Key and Seq
	space  string     // of a noteLayout, with seq and layout
	seq    uint64
	layout block.Layout
}

func encodeBlock(s stay, info block.Info) []byte {
	le, p := binary.LittleEndian, make([]byte, noteBlockBytes)
	p[0] = noteBlock
	le.PutUint32(p[4:], info.CRC)
	le.PutUint64(p[8:], uint64(info.Size))
	copy(p[16:], s[:])
	copy(p[32:], info.ID[:])
	return p
}

func encodeGone(s stay) []byte {
	p := make([]byte, noteGoneBytes)
	p[0] = noteGone
	copy(p[16:], s[:])
	return p
}

// putTexts writes the lengths of texts from offset 2 on, and appends them.
func putTexts(p []byte, texts ...string) []byte {
	for i, s := range texts {
		binary.LittleEndian.PutUint16(p[2+2*i:], uint16(len(s)))
	}
	for _, s := range texts {
		p = append(p, s...)
	}
	return p
}

func encodeName(s stay, n block.Name) []byte {
	le := binary.LittleEndian
	p := make([]byte, noteNameBytes, noteNameBytes+len(n.Namespace)+len(n.Key)+len(n.Parent))
	p[0] = noteName
	for flag, set := range map[byte]bool{flagPrefix: n.Prefix, flagBound: n.Bound, flagInferred: n.Inferred} {
		if set {
			p[1] |= flag
		}
	}
	le.PutUint64(p[8:], n.Seq)
	copy(p[16:], s[:])
	if !n.Expires.IsZero() {
		le.PutUint64(p[32:], uint64(n.Expires.UnixNano()))
	}
	le.PutUint32(p[40:], n.Depth)
	return putTexts(p, n.Namespace, n.Key, n.Parent)
}

func encodeUnlink(n block.Name) []byte {
	p := make([]byte, noteUnlinkBytes, noteUnlinkBytes+len(n.Namespace)+len(n.Key))
	p[0] = noteUnlink
	binary.LittleEndian.PutUint64(p[8:], n.Seq)
	return putTexts(p, n.Namespace, n.Key)
}

func encodeLayout(space string, seq uint64, l block.Layout) []byte {
	p := make([]byte, 16, noteLayoutBytes+len(space)+len(l.DType))
	p[0] = noteLayout
	binary.LittleEndian.PutUint64(p[8:], seq)
	return putTexts(l.AppendNumbers(p), space, l.DType)
}

// texts returns the texts behind offset at of which p has the lengths from offset 2 on; false if these are not what
// follows, or other lengths than those of texts are there.
func texts(p []byte, at, count int) (out [3]string, ok bool) {
	for i := range out {
		n := int(binary.LittleEndian.Uint16(p[2+2*i:]))
		if n > block.MaxKey || n > len(p)-at || i >= count && n > 0 {
			return out, false
		}
		out[i] = string(p[at : at+n])
		at += n
	}
	return out, at == len(p)
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// decodeNote reads a note; false if it is none. Each note that is one has one encoding.
func decodeNote(p []byte) (note, bool) {
	if len(p) < 16 {
		return note{}, false
	}
	le := binary.LittleEndian
	n := note{kind: p[0]}
	switch {
	case n.kind == noteBlock && len(p) == noteBlockBytes && zero(p[1:4]):
		n.stay = stay(p[16:])
		n.info = block.Info{ID: block.ID(p[32:]), Size: int64(le.Uint64(p[8:])), CRC: le.Uint32(p[4:])}
		return n, n.info.Size >= 0 && n.info.Size <= block.MaxSize && !n.info.ID.IsZero() && n.stay.generation() != 0
	case n.kind == noteGone && len(p) == noteGoneBytes && zero(p[1:16]):
		n.stay = stay(p[16:])
		return n, true
	case n.kind == noteName && len(p) >= noteNameBytes && p[1]&^flagsKnown == 0:
		text, ok := texts(p, noteNameBytes, 3)
		n.stay = stay(p[16:32])
		n.name = block.Name{Namespace: text[0], Key: text[1], Parent: text[2], Depth: le.Uint32(p[40:]), Seq: le.Uint64(p[8:]),
			Prefix: p[1]&flagPrefix != 0, Bound: p[1]&flagBound != 0, Inferred: p[1]&flagInferred != 0}
		if at := int64(le.Uint64(p[32:])); at != 0 {
			n.name.Expires = time.Unix(0, at)
		}
		return n, ok && block.IsName(text[0], text[1])
	case n.kind == noteUnlink && p[1] == 0:
		text, ok := texts(p, noteUnlinkBytes, 2)
		n.name = block.Name{Namespace: text[0], Key: text[1], Seq: le.Uint64(p[8:])}
		return n, ok && block.IsName(text[0], text[1])
	case n.kind == noteLayout && len(p) >= noteLayoutBytes && p[1] == 0:
		text, ok := texts(p, noteLayoutBytes, 2)
		n.seq, n.space = le.Uint64(p[8:]), text[0]
		n.layout.SetNumbers(p[16:])
		n.layout.DType = text[1]
		return n, ok && n.layout.Check() == nil
	}
	return note{}, false
}
