package format

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/block"
)

// Constants of docs/format.md §1.
const (
	PageSize   = 4096
	Version    = 2 // that is written
	endianMark = 0x01020304
	InlineMax  = 512
	maxTable   = 64 << 20 // bytes of one frame's header

	HeadSize    = 128 // of the headers of frames and footers
	headSize1   = 64  // the same in version 1
	TrailerSize = 32
	LayoutSize  = 1024

	HeaderMagic  = "CASCSEG\n"
	FrameMagic   = "CFRM"
	FooterMagic  = "CFTR"
	TrailerMagic = "CASCEND\n"
)

// ErrBadFormat is the error for a file that is no segment that this version can read, or that
// something in it is not as docs/format.md has it. Test with errors.Is.
var ErrBadFormat = errors.New("segment: not a segment of ours")

// LE is the byte order of all numbers.
var LE = binary.LittleEndian

// Align rounds n up to a multiple of PageSize.
func Align(n int64) int64 { return (n + PageSize - 1) &^ (PageSize - 1) }

// Errorf is fmt.Errorf for an error that matches ErrBadFormat.
func Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadFormat, fmt.Sprintf(format, args...))
}

// headSize is the size of the headers of frames and footers in a version, 0 for one
// that this program does not know.
func headSize(version uint16) int64 {
	switch version {
	case 1:
		return headSize1
	case Version:
		return HeadSize
	}
	return 0
}

// Header is the content of a segment's first page besides its FileID.
type Header struct {
	Version     uint16    // 0 to write: Version
	Created     time.Time // with nanoseconds
	Layout      string
	Fingerprint [32]byte
}

// EncodeHeader fills the page p; a layout that is too long is cut.
func EncodeHeader(p []byte, id FileID, h Header) {
	clear(p[:PageSize])
	copy(p, HeaderMagic)
	LE.PutUint16(p[8:], cmp.Or(h.Version, Version))
	LE.PutUint32(p[12:], endianMark)
	LE.PutUint32(p[16:], id.Rank)
	LE.PutUint32(p[20:], PageSize)
	LE.PutUint64(p[24:], id.Incarnation)
	LE.PutUint64(p[32:], id.Number)
	LE.PutUint64(p[40:], uint64(h.Created.UnixNano()))
	copy(p[64:64+LayoutSize], h.Layout)
	copy(p[1088:1120], h.Fingerprint[:])
	LE.PutUint32(p[4092:], block.CRC(p[:4092]))
}

// DecodeHeader reads the page p. Errors match ErrBadFormat.
func DecodeHeader(p []byte) (id FileID, h Header, err error) {
	if len(p) < PageSize {
		return id, h, Errorf("header page of %d bytes", len(p))
	}
	switch {
	case string(p[:8]) != HeaderMagic:
		return id, h, Errorf("wrong magic %q", p[:8])
	case headSize(LE.Uint16(p[8:])) == 0:
		return id, h, Errorf("format version %d, this program reads versions 1 to %d", LE.Uint16(p[8:]), Version)
	case LE.Uint16(p[10:]) != 0 && LE.Uint16(p[8:]) > 1:
		return id, h, Errorf("features %#x, which this program does not know: a newer one wrote it", LE.Uint16(p[10:]))
	case LE.Uint32(p[12:]) != endianMark:
		return id, h, Errorf("endianness mark %#x", LE.Uint32(p[12:]))
	case LE.Uint32(p[20:]) != PageSize:
		return id, h, Errorf("page size %d", LE.Uint32(p[20:]))
	case LE.Uint32(p[4092:]) != block.CRC(p[:4092]):
		return id, h, Errorf("header page fails its checksum")
	}
	id = FileID{LE.Uint32(p[16:]), LE.Uint64(p[24:]), LE.Uint64(p[32:])}
	h.Version = LE.Uint16(p[8:])
	h.Created = time.Unix(0, int64(LE.Uint64(p[40:])))
	layout := p[64 : 64+LayoutSize]
	if i := bytes.IndexByte(layout, 0); i >= 0 {
		layout = layout[:i]
	}
	h.Layout = string(layout)
	copy(h.Fingerprint[:], p[1088:1120])
	return id, h, nil
}

// CheckHeader returns an error unless p is the header page of the segment id. It
// matches ErrBadFormat.
func CheckHeader(p []byte, id FileID) error {
	got, _, err := DecodeHeader(p)
	if err == nil && got != id {
		err = Errorf("header says rank %d, incarnation %016x, file %d", got.Rank, got.Incarnation, got.Number)
	}
	return err
}

// FrameHeader is the fixed part of a frame.
type FrameHeader struct {
	FileID         // its rank is not stored
	Version uint16 // 0 to write: Version
	HeadLen int64  // header and table
	Total   int64
	Entries int
	Number  uint64
	Synced  uint64
}

// TableAt is where in the frame its entry table is.
func (h FrameHeader) TableAt() int64 { return headSize(cmp.Or(h.Version, Version)) }

// EncodeFrameHeader fills the first bytes of p, which holds header and table.
func EncodeFrameHeader(p []byte, h FrameHeader) {
	clear(p[:h.TableAt()])
	copy(p, FrameMagic)
	LE.PutUint16(p[4:], cmp.Or(h.Version, Version))
	LE.PutUint32(p[8:], uint32(h.HeadLen))
	LE.PutUint32(p[12:], uint32(h.Entries))
	LE.PutUint64(p[16:], uint64(h.Total))
	LE.PutUint64(p[24:], h.Incarnation)
	LE.PutUint64(p[32:], h.Number)
	LE.PutUint64(p[40:], h.FileID.Number)
	LE.PutUint64(p[48:], h.Synced)
	LE.PutUint32(p[60:], FrameCRC(p[:h.HeadLen]))
}

// FrameCRC returns the checksum of a frame's header and table, p.
func FrameCRC(p []byte) uint32 {
	return block.ExtendCRC(block.CRC(p[:60]), p[64:])
}

// DecodeFrameHeader reads the fixed part only: sizes are checked, the CRC is
// not. Errors match ErrBadFormat.
func DecodeFrameHeader(p []byte) (FrameHeader, error) {
	if len(p) < HeadSize || string(p[:4]) != FrameMagic {
		return FrameHeader{}, Errorf("no frame")
	}
	h := FrameHeader{
		Version: LE.Uint16(p[4:]),
		FileID:  FileID{Incarnation: LE.Uint64(p[24:]), Number: LE.Uint64(p[40:])},
		HeadLen: int64(LE.Uint32(p[8:])),
		Entries: int(LE.Uint32(p[12:])),
		Total:   int64(LE.Uint64(p[16:])),
		Number:  LE.Uint64(p[32:]),
		Synced:  LE.Uint64(p[48:]),
	}
	if headSize(h.Version) == 0 {
		return FrameHeader{}, Errorf("frame version %d", h.Version)
	}
	if h.HeadLen < h.TableAt() || h.HeadLen > maxTable || h.Total%PageSize != 0 || h.Total < Align(h.HeadLen) {
		return FrameHeader{}, Errorf("frame of %d bytes with a header of %d", h.Total, h.HeadLen)
	}
	return h, nil
}

// ReadFrame reads header and entry table of a frame of the segment id, which must
// have the number and end before limit. read returns n bytes at off of the file, as
// many as a page first. Errors are those of read, or match ErrBadFormat.
func ReadFrame(id FileID, off int64, number uint64, limit int64, read func(off, n int64) ([]byte, error)) (h FrameHeader, p []byte, err error) {
	if p, err = read(off, PageSize); err != nil {
		return h, nil, err
	}
	h, err = DecodeFrameHeader(p)
	switch {
	case err != nil:
	case h.Incarnation != id.Incarnation || h.FileID.Number != id.Number:
		err = Errorf("frame of file %d of incarnation %016x", h.FileID.Number, h.Incarnation)
	case h.Number != number:
		err = Errorf("frame %d where frame %d belongs", h.Number, number)
	case h.Total > limit-off:
		err = Errorf("frame of %d bytes, of which the file has %d", h.Total, limit-off)
	case h.HeadLen > PageSize:
		p, err = read(off, h.HeadLen)
	}
	if err != nil {
		return h, nil, err
	}
	if p = p[:h.HeadLen]; LE.Uint32(p[60:]) != FrameCRC(p) {
		return h, nil, Errorf("frame header fails its checksum")
	}
	return h, p, nil
}

// footerSize is that of a footer with a head of that size whose table has so many bytes.
func footerSize(head, table int64) int64 { return Align(head + table + TrailerSize) }

// encodeFooter returns a whole footer for a file whose frames end at off.
// table holds the entries as a footer has them.
func encodeFooter(version uint16, id FileID, off int64, frames, entries int, table []byte) []byte {
	head := headSize(version)
	size := footerSize(head, int64(len(table)))
	p := make([]byte, size)
	copy(p, FooterMagic)
	LE.PutUint16(p[4:], version)
	LE.PutUint32(p[8:], uint32(frames))
	LE.PutUint32(p[12:], uint32(entries))
	LE.PutUint64(p[16:], uint64(len(table)))
	LE.PutUint64(p[24:], id.Incarnation)
	LE.PutUint64(p[32:], id.Number)
	copy(p[head:], table)
	t := p[size-TrailerSize:]
	LE.PutUint64(t, uint64(off))
	LE.PutUint64(t[8:], uint64(size))
	LE.PutUint32(t[16:], block.CRC(p[:size-TrailerSize]))
	LE.PutUint32(t[20:], block.CRC(t[:20]))
	copy(t[24:], TrailerMagic)
	return p
}

// DecodeTrailer reads the last bytes of a file of fileSize bytes and returns
// where its footer lies; false when the file is not sealed.
func DecodeTrailer(t []byte, fileSize int64) (off, size int64, ok bool) {
	if len(t) != TrailerSize || string(t[24:]) != TrailerMagic || LE.Uint32(t[20:]) != block.CRC(t[:20]) {
		return 0, 0, false
	}
	off, size = int64(LE.Uint64(t)), int64(LE.Uint64(t[8:]))
	ok = off >= PageSize && off%PageSize == 0 && size >= PageSize && size <= fileSize && off == fileSize-size
	return off, size, ok
}

// Footer is what a footer has.
type Footer struct {
	Table   []byte // the entries
	TableAt int64  // where in the footer
	Frames  uint64 // of the file
	Entries int
}

// DecodeFooter reads a whole footer of the segment id; the Table is a part of p. Errors match
// ErrBadFormat.
func DecodeFooter(p []byte, id FileID) (f Footer, err error) {
	if len(p) < PageSize || string(p[:4]) != FooterMagic {
		return f, Errorf("no footer")
	}
	f = Footer{TableAt: headSize(LE.Uint16(p[4:])), Frames: uint64(LE.Uint32(p[8:])), Entries: int(LE.Uint32(p[12:]))}
	if f.TableAt == 0 {
		return f, Errorf("footer version %d", LE.Uint16(p[4:]))
	}
	t := p[len(p)-TrailerSize:]
	n := LE.Uint64(p[16:])
	switch {
	case LE.Uint32(t[16:]) != block.CRC(p[:len(p)-TrailerSize]):
		err = Errorf("footer fails its checksum")
	case LE.Uint64(p[24:]) != id.Incarnation || LE.Uint64(p[32:]) != id.Number:
		err = Errorf("footer of file %d of incarnation %016x", LE.Uint64(p[32:]), LE.Uint64(p[24:]))
	case n > uint64(len(p))-uint64(f.TableAt)-TrailerSize:
		err = Errorf("footer table of %d bytes", n)
	default:
		f.Table = p[f.TableAt:][:n]
	}
	return f, err
}
