package format

import (
	"sync"

	"cascadekv/internal/block"
)

// Block is a block as it goes to a file.
type Block struct {
	Info  block.Info
	Names []block.Name
	As    Payload
	Bytes []byte // of the payload as stored
}

// Record is a NAME, or a DROP.
type Record struct {
	ID      block.ID   // of the block; zero for a DROP
	Name    block.Name // of a DROP Namespace, Key and Seq
	Dropped bool
	Hides   bool // a DROP: of older records in segments that were not read; not stored
}

func (r Record) append(p []byte) []byte {
	if r.Dropped {
		return AppendDrop(p, r.Name)
	}
	return AppendName(p, r.ID, r.Name)
}

// Zeros is a page of zeros, only read.
var Zeros [PageSize]byte

// headers lends buffers for frame headers.
var headers = sync.Pool{New: func() any { p := make([]byte, 0, 4*PageSize); return &p }}

// tableSize returns the bytes of a frame's entry table.
func tableSize(blocks []Block, recs []Record) int64 {
	n := 0
	for _, b := range blocks {
		n += BlockEntrySize
		if b.As.Inline() {
			n += Align8(len(b.Bytes))
		}
		for _, nm := range b.Names {
			n += NameSize(nm)
		}
	}
	for _, r := range recs {
		if r.Dropped {
			n += DropSize(r.Name)
		} else {
			n += NameSize(r.Name)
		}
	}
	return int64(n)
}

// FrameSize returns header length and total length of a frame.
func FrameSize(blocks []Block, recs []Record) (headLen, total int64) {
	headLen = FrameHeaderSize + tableSize(blocks, recs)
	total = Align(headLen)
	for _, b := range blocks {
		if !b.As.Inline() {
			total += Align(b.As.Size)
		}
	}
	return headLen, total
}

// Builder lays out a segment that is being written, frame by frame. The zero value
// is one without frames.
type Builder struct {
	Off    int64  // where the next frame or the footer goes
	Frames uint64 // that were added
	Blocks int    // in them

	table   []byte // what the footer will hold
	entries int
}

// Frame is a frame ready to be written at Builder.Off, or, if it is the first, at
// the start of the file: then the first page is for the header.
type Frame struct {
	Bufs [][]byte // the payloads themselves among them
	Offs []int64  // of the payloads in the file, by block

	total  int64
	pooled *[]byte
}

// Free gives the memory of the frame's header back.
func (fr *Frame) Free() { headers.Put(fr.pooled) }

// Build lays out a frame of the segment id. Frames below synced are durable.
func (b *Builder) Build(id FileID, blocks []Block, recs []Record, synced uint64) *Frame {
	headLen, total := FrameSize(blocks, recs)
	fr := &Frame{total: total, Offs: make([]int64, len(blocks)), pooled: headers.Get().(*[]byte)}
	p := (*fr.pooled)[:0]
	if b.Frames == 0 {
		p = append(p, Zeros[:]...)
		b.Off = PageSize
	}
	start := len(p)
	p = append(p, Zeros[:FrameHeaderSize]...)
	fr.Bufs = append(make([][]byte, 0, 2*len(blocks)+1), nil)
	next, entries := Align(headLen), len(blocks)+len(recs)
	for i, one := range blocks {
		off, inline := next, []byte(nil)
		if one.As.Inline() {
			off, inline = int64(len(p)-start+BlockEntrySize), one.Bytes
			if inline == nil {
				inline = Zeros[:0]
			}
		} else {
			fr.Bufs = append(fr.Bufs, one.Bytes)
			if pad := Align(one.As.Size) - one.As.Size; pad > 0 {
				fr.Bufs = append(fr.Bufs, Zeros[:pad])
			}
			next += Align(one.As.Size)
		}
		fr.Offs[i] = b.Off + off
		p = appendBlock(p, one.Info, one.As, off, inline)
		b.table = appendBlock(b.table, one.Info, one.As, b.Off+off, nil)
		for _, n := range one.Names {
			p = AppendName(p, one.Info.ID, n)
			b.table = AppendName(b.table, one.Info.ID, n)
			entries++
		}
	}
	for _, r := range recs {
		p, b.table = r.append(p), r.append(b.table)
	}
	b.entries += entries
	EncodeFrameHeader(p[start:], FrameHeader{
		FileID: id, HeadLen: headLen, Total: total, Entries: entries, Number: b.Frames, Synced: synced,
	})
	p = append(p, Zeros[:Align(headLen)-headLen]...)
	fr.Bufs[0], *fr.pooled = p, p
	return fr
}

// Add notes that a frame was written.
func (b *Builder) Add(fr *Frame) {
	b.Off += fr.total
	b.Frames++
	b.Blocks += len(fr.Offs)
}

// Footer returns the footer of the segment id, to which nothing is added any more.
func (b *Builder) Footer(id FileID) []byte {
	footer := EncodeFooter(id, b.Off, int(b.Frames), b.entries, b.table)
	b.table = nil
	return footer
}
