package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// MaxSealed bounds a segment that Transfer takes: twice what format.Drafts makes,
// unless one block alone is larger than its bound.
const MaxSealed = 2*format.DraftBytes + 4*format.PageSize

// Transfer copies a sealed segment from a stream under another identity and
// verifies every byte of it. Nothing of the stream is trusted: what it can make
// the reader allocate is bounded by what it has delivered and by a frame's
// table, 64 MiB.
type Transfer struct {
	From   format.FileID // the identity in the stream
	Header format.Header
	Blocks int
	Names  int   // the other entries
	Bytes  int64 // of payloads as stored

	verifier
	buf      []byte
	progress func(int64)

	r     io.Reader
	left  int64 // bytes of the segment that were not read yet
	off   int64
	built format.Builder
}

// NewTransfer reads the header page of a segment of size bytes from r. Errors
// match ErrBadFormat, or are those of r; a stream that ends early is
// io.ErrUnexpectedEOF.
func NewTransfer(r io.Reader, size int64, o InspectOptions) (a *Transfer, err error) {
	if size < 2*format.PageSize || size%format.PageSize != 0 || size > MaxSealed {
		return nil, format.Errorf("a sealed segment of %d bytes", size)
	}
	a = &Transfer{verifier: verifier{ids: o.IDs}, buf: o.Buf, progress: o.Progress, r: r, left: size}
	page := make([]byte, format.PageSize)
	if err := a.read(page); err != nil {
		return nil, err
	}
	if a.From, a.Header, err = format.DecodeHeader(page); err != nil {
		return nil, err
	}
	again := make([]byte, format.PageSize)
	format.EncodeHeader(again, a.From, a.Header)
	if !bytes.Equal(page, again) {
		return nil, format.Errorf("reserved bytes of the header page are not zero")
	}
	return a, nil
}

// Copy writes the segment to w as id, without its footer, and returns the
// footer, which belongs behind it. The layout that the header had stays
// behind: it is that of another file. Errors: ErrBadFormat and ErrCorrupt for
// what the stream holds, those of reading it, those of w.
func (a *Transfer) Copy(w io.Writer, id format.FileID) (footer []byte, err error) {
	page := make([]byte, format.PageSize)
	format.EncodeHeader(page, id, format.Header{Version: a.Header.Version, Created: a.Header.Created, Fingerprint: a.Header.Fingerprint})
	a.built.Version = a.Header.Version
	if _, err := w.Write(page); err != nil {
		return nil, err
	}
	for {
		if err := a.read(page); err != nil {
			return nil, err
		}
		if string(page[:4]) == format.FooterMagic {
			break
		}
		if err := a.frame(w, page, id); err != nil {
			return nil, err
		}
	}
	a.built.Off = a.off - format.PageSize
	want := a.built.Footer(a.From)
	if int64(len(want)) != format.PageSize+a.left {
		return nil, format.Errorf("footer of %d bytes, the frames give one of %d", format.PageSize+a.left, len(want))
	}
	for rest := want; ; rest = rest[format.PageSize:] {
		if !bytes.Equal(page, rest[:format.PageSize]) {
			return nil, format.Errorf("the footer does not say what the frames do")
		}
		if len(rest) == format.PageSize {
			return a.built.Footer(id), nil
		}
		if err := a.read(page); err != nil {
			return nil, err
		}
	}
}

// read fills p from the stream.
func (a *Transfer) read(p []byte) error {
	if int64(len(p)) > a.left {
		return format.Errorf("%d bytes are left where %d belong", a.left, len(p))
	}
	n, err := io.ReadFull(a.r, p)
	a.left, a.off = a.left-int64(n), a.off+int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && a.progress != nil {
		a.progress(int64(n))
	}
	return err
}

// frame copies the frame that begins with page.
func (a *Transfer) frame(w io.Writer, page []byte, id format.FileID) error {
	base := a.off - format.PageSize
	head := bytes.Clone(page)
	h, table, err := format.ReadFrame(a.From, base, a.built.Frames, a.off+a.left, func(_, n int64) ([]byte, error) {
		if n <= format.PageSize {
			return head, nil
		}
		head = slices.Grow(head, int(format.Align(n)-format.PageSize))[:format.Align(n)]
		return head, a.read(head[format.PageSize:])
	})
	if err != nil {
		return err
	}
	if h.Version != a.Header.Version {
		return format.Errorf("a frame of version %d in a file of version %d", h.Version, a.Header.Version)
	}
	entries, unknown, err := exportTable(table[h.TableAt():], base, base+h.Total, base+h.TableAt(), h.Entries)
	switch {
	case err != nil:
		return err
	case unknown > 0:
		return format.Errorf("%d entries of kinds that this program does not know", unknown)
	case !IsZero(head[h.HeadLen:]):
		return format.Errorf("padding at %d is not zero", base+h.HeadLen)
	}
	h.FileID, h.Synced = id, 0
	format.EncodeFrameHeader(head, h)
	if _, err := w.Write(head); err != nil {
		return err
	}
	for i := range entries {
		if err := a.entry(w, &entries[i], head, base); err != nil {
			return err
		}
	}
	a.built.Frames++
	return a.pad(w, base+h.Total)
}

// entry checks one entry and copies its payload; the frame's table is in head.
func (a *Transfer) entry(w io.Writer, e *Entry, head []byte, base int64) error {
	a.built.List(&e.Entry)
	if e.Kind != format.KindBlock {
		a.Names++
		return nil
	}
	if e.Info.ID.IsZero() || e.Info.ID.IsProvisional() {
		return format.Errorf("no block has the id %v", e.Info.ID)
	}
	a.Blocks++
	a.Bytes += e.Stored
	each := a.each
	if e.Off < base+int64(len(head)) {
		if e.Off+e.Stored > base+int64(len(head)) {
			return format.Errorf("payload at %d overlaps the table", e.Off)
		}
		inline := head[e.Off-base:]
		each = func(_ io.Writer, n int64, fn func([]byte) error) error {
			p := inline[:n]
			inline = inline[n:]
			return fn(p)
		}
	} else if err := a.pad(w, e.Off); err != nil {
		return err
	}
	found, err := a.verifier.payload(e, func(n int64, fn func([]byte)) error {
		return each(w, n, func(p []byte) error {
			fn(p)
			return nil
		})
	})
	if err == nil && found.kind != "" {
		err = fmt.Errorf("%w: block %v: %s", tiers.ErrCorrupt, e.Info.ID, found.why)
	}
	return err
}

// each copies n bytes to w, through fn.
func (a *Transfer) each(w io.Writer, n int64, fn func([]byte) error) error {
	for n > 0 {
		p := a.buf[:min(n, int64(len(a.buf)))]
		if err := a.read(p); err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		n -= int64(len(p))
	}
	return nil
}

// pad copies zeros up to the offset to.
func (a *Transfer) pad(w io.Writer, to int64) error {
	if to < a.off {
		return format.Errorf("payload at %d, before its place", to)
	}
	return a.each(w, to-a.off, func(p []byte) error {
		if !IsZero(p) {
			return format.Errorf("padding before %d is not zero", to)
		}
		return nil
	})
}

// IsZero reports whether p holds zeros only.
func IsZero(p []byte) bool {
	for len(p) > 0 {
		k := min(len(p), format.PageSize)
		if !bytes.Equal(p[:k], format.Zeros[:k]) {
			return false
		}
		p = p[k:]
	}
	return true
}
