package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/block"
)

// Constants of docs/format.md §1.
const (
	PageSize      = 4096
	formatVersion = 1
	endianMark    = 0x01020304
	InlineMax     = 512
	maxTable      = 64 << 20 // bytes of one frame's header

	FrameHeaderSize = 64
	FooterHeadSize  = 64
	TrailerSize     = 32
	LayoutSize      = 1024

	HeaderMagic  = "CASCSEG\n"
	FrameMagic   = "CFRM"
	FooterMagic  = "CFTR"
	TrailerMagic = "CASCEND\n"
)

// ErrBadFormat says that a file is no segment that this version can read, or that
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

// Header is what the first page of a segment says besides its FileID.
type Header struct {
	Created     time.Time // with nanoseconds
	Layout      string
	Fingerprint [32]byte
}

// EncodeHeader fills the page p; a layout that is too long is cut.
func EncodeHeader(p []byte, id FileID, h Header) {
	clear(p[:PageSize])
	copy(p, HeaderMagic)
	LE.PutUint16(p[8:], formatVersion)
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
	case LE.Uint16(p[8:]) != formatVersion:
		return id, h, Errorf("format version %d, this program reads version %d", LE.Uint16(p[8:]), formatVersion)
	case LE.Uint32(p[12:]) != endianMark:
		return id, h, Errorf("endianness mark %#x", LE.Uint32(p[12:]))
	case LE.Uint32(p[20:]) != PageSize:
		return id, h, Errorf("page size %d", LE.Uint32(p[20:]))
	case LE.Uint32(p[4092:]) != block.CRC(p[:4092]):
		return id, h, Errorf("header page fails its checksum")
	}
	id = FileID{LE.Uint32(p[16:]), LE.Uint64(p[24:]), LE.Uint64(p[32:])}
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
	FileID        // its rank is not stored
	HeadLen int64 // header and table
	Total   int64
	Entries int
	Number  uint64
	Synced  uint64
}

// EncodeFrameHeader fills the first bytes of p, which holds header and table.
func EncodeFrameHeader(p []byte, h FrameHeader) {
	clear(p[:FrameHeaderSize])
	copy(p, FrameMagic)
	LE.PutUint16(p[4:], formatVersion)
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
	return block.ExtendCRC(block.CRC(p[:60]), p[FrameHeaderSize:])
}

// DecodeFrameHeader reads the fixed part only: sizes are checked, the CRC is
// not. Errors match ErrBadFormat.
func DecodeFrameHeader(p []byte) (FrameHeader, error) {
	if len(p) < FrameHeaderSize || string(p[:4]) != FrameMagic {
		return FrameHeader{}, Errorf("no frame")
	}
	if v := LE.Uint16(p[4:]); v != formatVersion {
		return FrameHeader{}, Errorf("frame version %d", v)
	}
	h := FrameHeader{
		FileID:  FileID{Incarnation: LE.Uint64(p[24:]), Number: LE.Uint64(p[40:])},
		HeadLen: int64(LE.Uint32(p[8:])),
		Entries: int(LE.Uint32(p[12:])),
		Total:   int64(LE.Uint64(p[16:])),
		Number:  LE.Uint64(p[32:]),
		Synced:  LE.Uint64(p[48:]),
	}
	if h.HeadLen < FrameHeaderSize || h.HeadLen > maxTable || h.Total%PageSize != 0 || h.Total < Align(h.HeadLen) {
		return FrameHeader{}, Errorf("frame of %d bytes with a header of %d", h.Total, h.HeadLen)
	}
	return h, nil
}

// decodeFrame reads header and entry table. p must hold both. Errors match
// ErrBadFormat.
func decodeFrame(p []byte) (FrameHeader, []Entry, error) {
	h, err := DecodeFrameHeader(p)
	if err != nil {
		return h, nil, err
	}
	if int64(len(p)) < h.HeadLen {
		return h, nil, Errorf("frame header cut after %d of %d bytes", len(p), h.HeadLen)
	}
	p = p[:h.HeadLen]
	if LE.Uint32(p[60:]) != FrameCRC(p) {
		return h, nil, Errorf("frame header fails its checksum")
	}
	entries, err := decodeTable(nil, p[FrameHeaderSize:], FrameHeaderSize, h.Entries, h.Total)
	return h, entries, err
}

// EncodeFooter returns a whole footer for a file whose frames end at off.
// table holds the entries as a footer has them.
func EncodeFooter(id FileID, off int64, frames, entries int, table []byte) []byte {
	size := Align(FooterHeadSize + int64(len(table)) + TrailerSize)
	p := make([]byte, size)
	copy(p, FooterMagic)
	LE.PutUint16(p[4:], formatVersion)
	LE.PutUint32(p[8:], uint32(frames))
	LE.PutUint32(p[12:], uint32(entries))
	LE.PutUint64(p[16:], uint64(len(table)))
	LE.PutUint64(p[24:], id.Incarnation)
	LE.PutUint64(p[32:], id.Number)
	copy(p[FooterHeadSize:], table)
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

// DecodeFooter appends to out what a whole footer has whose frames end at off.
// Errors match ErrBadFormat.
func DecodeFooter(out []Entry, p []byte, id FileID, off int64) ([]Entry, error) {
	if len(p) < PageSize || string(p[:4]) != FooterMagic {
		return nil, Errorf("no footer")
	}
	if v := LE.Uint16(p[4:]); v != formatVersion {
		return nil, Errorf("footer version %d", v)
	}
	t := p[len(p)-TrailerSize:]
	table := LE.Uint64(p[16:])
	switch {
	case LE.Uint32(t[16:]) != block.CRC(p[:len(p)-TrailerSize]):
		return nil, Errorf("footer fails its checksum")
	case LE.Uint64(p[24:]) != id.Incarnation || LE.Uint64(p[32:]) != id.Number:
		return nil, Errorf("footer of file %d of incarnation %016x", LE.Uint64(p[32:]), LE.Uint64(p[24:]))
	case table > uint64(len(p)-FooterHeadSize-TrailerSize):
		return nil, Errorf("footer table of %d bytes", table)
	}
	return decodeTable(out, p[FooterHeadSize:FooterHeadSize+int(table)], 0, int(LE.Uint32(p[12:])), off)
}
