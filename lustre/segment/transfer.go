package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
)

// MaxSealed bounds a segment that Transfer takes: twice what Drafts makes, unless
// one block alone is larger than Drafts' bound.
const MaxSealed = 2*draftBytes + 4*pageSize

// Transfer copies a sealed segment from a stream under another identity and
// verifies every byte of it. Nothing of the stream is trusted: what it can make
// the reader allocate is bounded by what it has delivered and by a frame's
// table, 64 MiB.
type Transfer struct {
	From   FileID // what the stream says it is
	Header Header
	Blocks int
	Names  int   // NAME and DROP
	Bytes  int64 // of payloads as stored

	o     InspectOptions
	r     io.Reader
	left  int64 // bytes of the segment that were not read yet
	off   int64
	table []byte

	decoder decoder
}

// NewTransfer reads the header page of a segment of size bytes from r. Errors
// match ErrBadFormat, or are those of r; a stream that ends early is
// io.ErrUnexpectedEOF.
func NewTransfer(r io.Reader, size int64, o InspectOptions) (*Transfer, error) {
	if size < 2*pageSize || size%pageSize != 0 || size > MaxSealed {
		return nil, badFormat("a sealed segment of %d bytes", size)
	}
	a := &Transfer{o: o, r: r, left: size}
	page := make([]byte, pageSize)
	if err := a.read(page); err != nil {
		return nil, err
	}
	h, err := decodeHeader(page)
	if err != nil {
		return nil, err
	}
	a.From = FileID{h.rank, h.incarnation, h.number}
	a.Header = Header{time.Unix(0, h.created), h.layout, h.fingerprint}
	again := make([]byte, pageSize)
	encodeHeader(again, h)
	if !bytes.Equal(page, again) {
		return nil, badFormat("reserved bytes of the header page are not zero")
	}
	return a, nil
}

// Copy writes the segment to w as id, without its footer, and returns the
// footer, which belongs behind it. The layout that the header told of stays
// behind: it is that of another file. Errors: ErrBadFormat and ErrCorrupt for
// what the stream holds, those of reading it, those of w.
func (a *Transfer) Copy(w io.Writer, id FileID) (footer []byte, err error) {
	page := make([]byte, pageSize)
	encodeHeader(page, header{id.internal(), a.Header.Created.UnixNano(), "", a.Header.Fingerprint})
	if _, err := w.Write(page); err != nil {
		return nil, err
	}
	frames, entries := 0, 0
	for {
		if err := a.read(page); err != nil {
			return nil, err
		}
		if string(page[:4]) == footerMagic {
			break
		}
		n, err := a.frame(w, page, id.internal(), uint64(frames))
		if err != nil {
			return nil, err
		}
		frames, entries = frames+1, entries+n
	}
	end := a.off - pageSize
	want := encodeFooter(a.From.internal(), end, frames, entries, a.table)
	if int64(len(want)) != pageSize+a.left {
		return nil, badFormat("footer of %d bytes, the frames give one of %d", pageSize+a.left, len(want))
	}
	for rest := want; ; rest = rest[pageSize:] {
		if !bytes.Equal(page, rest[:pageSize]) {
			return nil, badFormat("the footer does not say what the frames do")
		}
		if len(rest) == pageSize {
			return encodeFooter(id.internal(), end, frames, entries, a.table), nil
		}
		if err := a.read(page); err != nil {
			return nil, err
		}
	}
}

// read fills p from the stream.
func (a *Transfer) read(p []byte) error {
	if int64(len(p)) > a.left {
		return badFormat("%d bytes are left where %d belong", a.left, len(p))
	}
	n, err := io.ReadFull(a.r, p)
	a.left, a.off = a.left-int64(n), a.off+int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && a.o.Progress != nil {
		a.o.Progress(int64(n))
	}
	return err
}

// frame copies the frame that begins with page and returns its entries' number.
func (a *Transfer) frame(w io.Writer, page []byte, id fileID, number uint64) (int, error) {
	base := a.off - pageSize
	h, err := decodeFrameHeader(page)
	if err != nil {
		return 0, err
	}
	if h.incarnation != a.From.Incarnation || h.fileID.number != a.From.Number || h.number != number || h.total-pageSize > a.left {
		return 0, badFormat("frame %d of file %d, %d bytes, where frame %d belongs", h.number, h.fileID.number, h.total, number)
	}
	head := slices.Grow(bytes.Clone(page), int(align(h.headLen)-pageSize))[:align(h.headLen)]
	if err := a.read(head[pageSize:]); err != nil {
		return 0, err
	}
	if le.Uint32(head[60:]) != frameCRC(head[:h.headLen]) {
		return 0, badFormat("frame header at %d fails its checksum", base)
	}
	entries, unknown, err := exportTable(head[frameHeaderSize:h.headLen], base, base+h.total, base+frameHeaderSize, h.entries)
	switch {
	case err != nil:
		return 0, err
	case unknown > 0:
		return 0, badFormat("%d entries of kinds that this program does not know", unknown)
	case !isZero(head[h.headLen:]):
		return 0, badFormat("padding at %d is not zero", base+h.headLen)
	}
	h.fileID, h.synced = id, 0
	encodeFrameHeader(head, h)
	if _, err := w.Write(head); err != nil {
		return 0, err
	}
	for i := range entries {
		if err := a.entry(w, &entries[i], head, base); err != nil {
			return 0, err
		}
	}
	return len(entries), a.pad(w, base+h.total)
}

// entry checks one entry and copies its payload; the frame's table is in head.
func (a *Transfer) entry(w io.Writer, e *Entry, head []byte, base int64) error {
	switch e.Kind {
	case KindName:
		a.Names++
		a.table = appendName(a.table, e.Info.ID, e.Name)
		return nil
	case KindDrop:
		a.Names++
		a.table = appendDrop(a.table, e.Name)
		return nil
	}
	if e.Info.ID.IsZero() || e.Info.ID.IsProvisional() {
		return badFormat("no block has the id %v", e.Info.ID)
	}
	a.Blocks++
	a.Bytes += e.Stored
	a.table = e.appendFixed(a.table, e.Off, 0, 0)
	if e.Off < base+int64(len(head)) {
		if e.Off+e.Stored > base+int64(len(head)) {
			return badFormat("payload at %d overlaps the table", e.Off)
		}
		payload := head[e.Off-base:]
		return a.check(e, func(p []byte) error {
			payload = payload[copy(p, payload):]
			return nil
		})
	}
	if err := a.pad(w, e.Off); err != nil {
		return err
	}
	return a.check(e, func(p []byte) error {
		err := a.read(p)
		if err == nil {
			_, err = w.Write(p)
		}
		return err
	})
}

// check verifies the payload that next delivers.
func (a *Transfer) check(e *Entry, next func(p []byte) error) error {
	var crc uint32
	read := func(p []byte) error {
		err := next(p)
		crc = block.ExtendCRC(crc, p)
		return err
	}
	hash := a.o.hasher(e)
	var why string
	var err error
	if hash != nil && e.Codec != codec.None {
		why, err = a.decoder.hash(e, hash, read)
	} else {
		err = a.plain(e.Stored, hash, read)
	}
	switch {
	case err != nil:
		return err
	case why != "":
		return fmt.Errorf("%w: block %v: %s", ErrCorrupt, e.Info.ID, why)
	case crc != e.StoredCRC:
		return fmt.Errorf("%w: block %v: CRC32C %08x, want %08x", ErrCorrupt, e.Info.ID, crc, e.StoredCRC)
	case hash != nil && hash.ID() != e.Info.ID:
		return fmt.Errorf("%w: block %v: its bytes are those of %v", ErrCorrupt, e.Info.ID, hash.ID())
	}
	return nil
}

// plain reads a payload and hands it to hash, if there is one.
func (a *Transfer) plain(n int64, hash *block.Hasher, read func([]byte) error) error {
	for n > 0 {
		p := a.o.Buf[:min(n, int64(len(a.o.Buf)))]
		if err := read(p); err != nil {
			return err
		}
		if hash != nil {
			hash.Write(p)
		}
		n -= int64(len(p))
	}
	return nil
}

// pad copies zeros up to the offset to.
func (a *Transfer) pad(w io.Writer, to int64) error {
	if to < a.off {
		return badFormat("payload at %d, before its place", to)
	}
	for n := to - a.off; n > 0; n = to - a.off {
		p := a.o.Buf[:min(n, int64(len(a.o.Buf)))]
		if err := a.read(p); err != nil {
			return err
		}
		if !isZero(p) {
			return badFormat("padding before %d is not zero", to)
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// isZero reports whether p holds zeros only.
func isZero(p []byte) bool {
	for len(p) > 0 {
		k := min(len(p), pageSize)
		if !bytes.Equal(p[:k], zeros[:k]) {
			return false
		}
		p = p[k:]
	}
	return true
}
