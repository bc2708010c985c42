package format

import (
	"cmp"
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

// Record is a NAME, a DROP, or a LAYOUT.
type Record struct {
	ID      block.ID   // of the block; zero but for a NAME
	Name    block.Name // of a DROP Namespace, Key and Seq; of a LAYOUT Namespace and Seq
	Dropped bool
	Hides   bool          // a DROP: of older records in segments that were not read; not stored
	Layout  *block.Layout // a LAYOUT; else nil
}

func (r Record) append(p []byte) []byte {
	switch {
	case r.Layout != nil:
		return appendLayout(p, r.Name, r.Layout)
	case r.Dropped:
		return appendDrop(p, r.Name)
	}
	return appendName(p, r.ID, r.Name)
}

// size returns the bytes of the entry.
func (r Record) size() int {
	switch {
	case r.Layout != nil:
		return align8(layoutEntrySize + len(r.Name.Namespace) + len(r.Layout.DType))
	case r.Dropped:
		return align8(dropEntrySize + len(r.Name.Namespace) + len(r.Name.Key))
	}
	return align8(nameEntrySize + len(r.Name.Namespace) + len(r.Name.Key) + len(r.Name.Parent))
}

// Zeros is a page of zeros, only read.
var Zeros [PageSize]byte

// headers lends buffers for frame headers.
var headers = sync.Pool{New: func() any { p := make([]byte, 0, 4*PageSize); return &p }}

// FrameSize returns header length and total length of a frame.
func FrameSize(blocks []Block, recs []Record) (headLen, total int64) {
	headLen = HeadSize
	var payloads int64
	for _, b := range blocks {
		headLen += b.As.entrySize()
		payloads += b.As.outside()
		for _, n := range b.Names {
			headLen += int64(Record{Name: n}.size())
		}
	}
	for _, r := range recs {
		headLen += int64(r.size())
	}
	return headLen, Align(headLen) + payloads
}

// Builder lays out a segment that is being written, frame by frame. The zero value
// is one without frames.
type Builder struct {
	Version uint16 // of the segment; 0: Version

	Off    int64  // where the next frame or the footer goes
	Frames uint64 // that were added
	Blocks int    // in them

	Entries int    // blocks among them, names, layouts
	table   []byte // what the footer will hold
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
	t := b.begin((*fr.pooled)[:0], headLen)
	fr.Bufs = append(make([][]byte, 0, 2*len(blocks)+1), nil)
	for i, one := range blocks {
		fr.Offs[i] = b.Off + t.block(one.Info, one.As, one.Bytes)
		if !one.As.Inline() {
			fr.Bufs = append(fr.Bufs, one.Bytes)
			if pad := Align(one.As.Size) - one.As.Size; pad > 0 {
				fr.Bufs = append(fr.Bufs, Zeros[:pad])
			}
		}
		for _, n := range one.Names {
			t.record(Record{ID: one.Info.ID, Name: n})
		}
	}
	for _, r := range recs {
		t.record(r)
	}
	fr.Bufs[0] = t.end(FrameHeader{FileID: id, HeadLen: headLen, Total: total, Synced: synced})
	*fr.pooled = fr.Bufs[0]
	return fr
}

// table is the header and the entries of a frame in the making.
type table struct {
	b       *Builder
	p       []byte
	start   int   // of the frame in p
	next    int64 // where the next payload goes, in the frame
	entries int   // of the frames before
}

// begin appends a frame to p, behind a page for the header of the file if it is
// the first.
func (b *Builder) begin(p []byte, headLen int64) table {
	if b.Frames == 0 {
		p = append(p, Zeros[:]...)
		b.Off = PageSize
	}
	return table{b, append(p, Zeros[:HeadSize]...), len(p), Align(headLen), b.Entries}
}

// block adds a BLOCK, with its payload if that lies in the entry, and returns where
// in the frame the payload goes.
func (t *table) block(info block.Info, as Payload, payload []byte) (off int64) {
	if as.Inline() {
		off = int64(len(t.p)-t.start) + BlockEntrySize
		t.p = appendBlock(t.p, info, as, off, flagInline, align8(len(payload)))
		copy(t.p[len(t.p)-align8(len(payload)):], payload)
	} else {
		off = t.next
		t.p = appendBlock(t.p, info, as, off, 0, 0)
		t.next += as.outside()
	}
	t.b.List(&Entry{Kind: KindBlock, Info: info, Stored: as.Size, StoredCRC: as.CRC, Codec: as.Codec, Off: t.b.Off + off})
	return off
}

// record adds a NAME or DROP.
func (t *table) record(r Record) {
	t.p = r.append(t.p)
	t.b.record(r)
}

// end returns what was begun, padded to whole pages.
func (t *table) end(h FrameHeader) []byte {
	h.Entries, h.Number = t.b.Entries-t.entries, t.b.Frames
	EncodeFrameHeader(t.p[t.start:], h)
	return append(t.p, Zeros[:Align(h.HeadLen)-h.HeadLen]...)
}

// List adds to the entries of the footer. A payload's offset is in the file.
func (b *Builder) List(e *Entry) {
	if e.Kind != KindBlock {
		b.record(e.Record())
		return
	}
	b.Entries++
	b.table = appendBlock(b.table, e.Info, e.As(), e.Off, 0, 0)
}

func (b *Builder) record(r Record) {
	b.Entries++
	b.table = r.append(b.table)
}

// Add notes that a frame was written.
func (b *Builder) Add(fr *Frame) {
	b.Off += fr.total
	b.Frames++
	b.Blocks += len(fr.Offs)
}

// Footer returns the footer of the segment id.
func (b *Builder) Footer(id FileID) []byte {
	return encodeFooter(cmp.Or(b.Version, Version), id, b.Off, int(b.Frames), b.Entries, b.table)
}

// Free gives back the memory of a Builder of which no footer is wanted any more.
func (b *Builder) Free() { b.table = nil }
