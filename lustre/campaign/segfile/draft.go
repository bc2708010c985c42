package segfile

import (
	"fmt"
	"io"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

const (
	// draftBytes bounds a drafted segment, unless one block alone is larger:
	// as large as the segments that ranks write.
	draftBytes = 1 << 30
	// draftTable and draftPayload bound a frame of a draft: its table is built
	// in memory, and a reader of an unsealed file takes frames whole.
	draftTable, draftPayload = 256 << 10, 64 << 20
)

// Draft is the layout of one sealed segment whose entries lie elsewhere: what
// repair and export write. Its size is known before anything is read.
type Draft struct {
	ID     format.FileID
	Header format.Header
	frames []drafted
	blocks int
	names  int   // NAME and DROP
	end    int64 // of the frames
	table  int64 // bytes of the footer's table
}

// drafted is one frame of a draft.
type drafted struct {
	entries        []Entry
	headLen, total int64
}

// Drafts lays entries out in their order, in as many segments as it takes;
// their numbers count up from id's. It keeps entries.
func Drafts(id format.FileID, h format.Header, entries []Entry) []*Draft {
	var all []*Draft
	for len(entries) > 0 {
		d := &Draft{ID: id, Header: h, end: format.PageSize}
		entries = d.fill(entries)
		all = append(all, d)
		id.Number++
	}
	return all
}

// fill takes entries until the segment is full and returns the others.
func (d *Draft) fill(entries []Entry) []Entry {
	for len(entries) > 0 {
		fr := nextFrame(entries)
		if len(d.frames) > 0 && d.end+fr.total+d.footerSize(fr.entries) > draftBytes {
			break
		}
		d.frames = append(d.frames, fr)
		d.end += fr.total
		for i := range fr.entries {
			e := &fr.entries[i]
			d.table += e.tableSize(false)
			if e.Kind == format.KindBlock {
				d.blocks++
			} else {
				d.names++
			}
		}
		entries = entries[len(fr.entries):]
	}
	return entries
}

func nextFrame(entries []Entry) drafted {
	fr := drafted{headLen: format.FrameHeaderSize}
	payload, n := int64(0), 0
	for ; n < len(entries); n++ {
		e := &entries[n]
		if n > 0 && (fr.headLen+e.tableSize(true) > draftTable || payload+e.Stored > draftPayload) {
			break
		}
		fr.headLen += e.tableSize(true)
		if e.Kind == format.KindBlock && !e.inline() {
			payload += format.Align(e.Stored)
		}
	}
	fr.entries, fr.total = entries[:n], format.Align(fr.headLen)+payload
	return fr
}

func (e *Entry) inline() bool { return e.Stored <= format.InlineMax }

// tableSize returns the bytes of e in a table, with its payload if it lies
// there and withPayload is true.
func (e *Entry) tableSize(withPayload bool) int64 {
	switch {
	case e.Kind == format.KindName:
		return int64(format.NameSize(e.Name))
	case e.Kind == format.KindDrop:
		return int64(format.DropSize(e.Name))
	case withPayload && e.inline():
		return int64(format.BlockEntrySize + format.Align8(int(e.Stored)))
	}
	return format.BlockEntrySize
}

// footerSize returns the size of the footer with more entries.
func (d *Draft) footerSize(more []Entry) int64 {
	n := d.table
	for i := range more {
		n += more[i].tableSize(false)
	}
	return format.Align(format.FooterHeadSize + n + format.TrailerSize)
}

// Size returns the bytes of the whole file.
func (d *Draft) Size() int64 { return d.end + d.footerSize(nil) }

// Blocks and Names return how many entries of each there are; a withdrawn name
// counts as a name.
func (d *Draft) Blocks() int { return d.blocks }

// Names returns how many names and withdrawn names the draft has.
func (d *Draft) Names() int { return d.names }

// WriteFrames writes everything but the footer to w, in order, and returns the
// footer, which belongs behind it. payload writes the e.Stored bytes of a
// block; it must fail if they are not what the entry says. An error is one of
// w or of payload.
func (d *Draft) WriteFrames(w io.Writer, payload func(e *Entry, w io.Writer) error) (footer []byte, err error) {
	page := make([]byte, format.PageSize)
	h := d.Header
	if h.Created.IsZero() {
		h.Created = time.Unix(0, 0)
	}
	format.EncodeHeader(page, d.ID, h)
	if _, err := w.Write(page); err != nil {
		return nil, err
	}
	var head []byte
	table := make([]byte, 0, d.table)
	off := int64(format.PageSize)
	for i, fr := range d.frames {
		if head, table, err = fr.encode(d.ID, uint64(i), off, head[:0], table, payload); err != nil {
			return nil, err
		}
		if _, err := w.Write(head); err != nil {
			return nil, err
		}
		for i := range fr.entries {
			if err := fr.entries[i].copy(w, payload); err != nil {
				return nil, err
			}
		}
		off += fr.total
	}
	return format.EncodeFooter(d.ID, d.end, len(d.frames), d.blocks+d.names, table), nil
}

// encode appends the frame's header and table to head, padded to a page, and
// its entries to the footer's table. off is where the frame begins.
func (fr *drafted) encode(id format.FileID, number uint64, off int64, head, table []byte, payload func(*Entry, io.Writer) error) ([]byte, []byte, error) {
	head = append(head, format.Zeros[:format.FrameHeaderSize]...)
	next := format.Align(fr.headLen)
	for i := range fr.entries {
		e := &fr.entries[i]
		switch e.Kind {
		case format.KindName:
			head, table = format.AppendName(head, e.Info.ID, e.Name), format.AppendName(table, e.Info.ID, e.Name)
		case format.KindDrop:
			head, table = format.AppendDrop(head, e.Name), format.AppendDrop(table, e.Name)
		default:
			at := next
			if e.inline() {
				at = int64(len(head) + format.BlockEntrySize)
			} else {
				next += format.Align(e.Stored)
			}
			var err error
			if head, err = e.appendBlock(head, at, payload); err != nil {
				return nil, nil, err
			}
			table = e.appendFixed(table, off+at, 0, 0)
		}
	}
	format.EncodeFrameHeader(head, format.FrameHeader{FileID: id, HeadLen: fr.headLen, Total: fr.total, Entries: len(fr.entries), Number: number})
	return append(head, format.Zeros[:format.Align(fr.headLen)-fr.headLen]...), table, nil
}

// appendBlock appends e as a frame has it, with its payload if that lies there.
func (e *Entry) appendBlock(p []byte, off int64, payload func(*Entry, io.Writer) error) ([]byte, error) {
	if !e.inline() {
		return e.appendFixed(p, off, 0, 0), nil
	}
	p = e.appendFixed(p, off, format.FlagInline, format.Align8(int(e.Stored)))
	room := p[len(p)-format.Align8(int(e.Stored)):][:e.Stored]
	w := &filler{room: room}
	if err := payload(e, w); err != nil {
		return nil, err
	}
	if len(w.room) != 0 {
		return nil, e.short(e.Stored - int64(len(w.room)))
	}
	return p, nil
}

// appendFixed appends the 80 bytes of a BLOCK, and more of zeros.
func (e *Entry) appendFixed(p []byte, off int64, flags uint16, more int) []byte {
	return format.AppendStored(p, e.Info, e.As(), off, flags, more)
}

// copy writes the payload of a block that does not lie in the table, padded.
func (e *Entry) copy(w io.Writer, payload func(*Entry, io.Writer) error) error {
	if e.Kind != format.KindBlock || e.inline() {
		return nil
	}
	n := &counter{w: w}
	if err := payload(e, n); err != nil {
		return err
	}
	if n.n != e.Stored {
		return e.short(n.n)
	}
	_, err := w.Write(format.Zeros[:format.Align(e.Stored)-e.Stored])
	return err
}

func (e *Entry) short(n int64) error {
	return fmt.Errorf("segfile: %d of the %d bytes of block %v were given", n, e.Stored, e.Info.ID)
}

// filler is a writer into memory that does not grow.
type filler struct{ room []byte }

// Write takes p if there is room for it.
func (f *filler) Write(p []byte) (int, error) {
	if len(p) > len(f.room) {
		return 0, io.ErrShortBuffer
	}
	f.room = f.room[copy(f.room, p):]
	return len(p), nil
}

// counter counts what goes to w.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Copier copies payloads from a segment and checks them on the way. It is the
// payload function of WriteFrames for entries of one file.
type Copier struct {
	win window
}

// NewCopier reads from f through buf, at least 64 KiB; the caller closes f.
func NewCopier(f vfs.File, buf []byte, progress func(int64)) (*Copier, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	return &Copier{window{f: f, size: size, buf: buf, progress: progress, straight: true}}, nil
}

// Copy writes the payload of e to w. Errors: ErrCorrupt when it is not what the
// entry says, or one of the file or of w.
func (c *Copier) Copy(e *Entry, w io.Writer) error {
	var crc uint32
	var werr error
	err := c.win.each(e.Off, e.Stored, func(p []byte) {
		crc = block.ExtendCRC(crc, p)
		if werr == nil {
			_, werr = w.Write(p)
		}
	})
	switch {
	case err != nil:
		return err
	case werr != nil:
		return werr
	case crc != e.StoredCRC:
		return fmt.Errorf("%w: block %v: CRC32C %08x, want %08x", tiers.ErrCorrupt, e.Info.ID, crc, e.StoredCRC)
	}
	return nil
}
