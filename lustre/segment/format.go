package segment

import (
	"encoding/binary"
	"fmt"

	"cascadekv/internal/block"
)

// Constants of docs/format.md §1.
const (
	pageSize      = 4096
	formatVersion = 1
	endianMark    = 0x01020304
	inlineMax     = 512
	maxTable      = 64 << 20 // bytes of one frame's header

	frameHeaderSize = 64
	footerHeadSize  = 64
	trailerSize     = 32
	layoutSize      = 1024

	headerMagic  = "CASCSEG\n"
	frameMagic   = "CFRM"
	footerMagic  = "CFTR"
	trailerMagic = "CASCEND\n"
)

var le = binary.LittleEndian

func align(n int64) int64 { return (n + pageSize - 1) &^ (pageSize - 1) }

func badFormat(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadFormat, fmt.Sprintf(format, args...))
}

// fileID says which file a structure belongs to.
type fileID struct {
	rank        uint32
	incarnation uint64
	number      uint64
}

// run is whose directory it lies in.
func (id fileID) run() Incarnation { return Incarnation{id.rank, id.incarnation} }

// header is the first page of a segment.
type header struct {
	fileID
	created     int64 // Unix nanoseconds
	layout      string
	fingerprint [32]byte
}

// encodeHeader fills the page p; a layout that is too long is cut.
func encodeHeader(p []byte, h header) {
	clear(p[:pageSize])
	copy(p, headerMagic)
	le.PutUint16(p[8:], formatVersion)
	le.PutUint32(p[12:], endianMark)
	le.PutUint32(p[16:], h.rank)
	le.PutUint32(p[20:], pageSize)
	le.PutUint64(p[24:], h.incarnation)
	le.PutUint64(p[32:], h.number)
	le.PutUint64(p[40:], uint64(h.created))
	copy(p[64:64+layoutSize], h.layout)
	copy(p[1088:1120], h.fingerprint[:])
	le.PutUint32(p[4092:], block.CRC(p[:4092]))
}

// decodeHeader reads the page p. Errors match ErrBadFormat.
func decodeHeader(p []byte) (header, error) {
	if len(p) < pageSize {
		return header{}, badFormat("header page of %d bytes", len(p))
	}
	switch {
	case string(p[:8]) != headerMagic:
		return header{}, badFormat("wrong magic %q", p[:8])
	case le.Uint16(p[8:]) != formatVersion:
		return header{}, badFormat("format version %d, this program reads version %d", le.Uint16(p[8:]), formatVersion)
	case le.Uint32(p[12:]) != endianMark:
		return header{}, badFormat("endianness mark %#x", le.Uint32(p[12:]))
	case le.Uint32(p[20:]) != pageSize:
		return header{}, badFormat("page size %d", le.Uint32(p[20:]))
	case le.Uint32(p[4092:]) != block.CRC(p[:4092]):
		return header{}, badFormat("header page fails its checksum")
	}
	h := header{
		fileID:  fileID{le.Uint32(p[16:]), le.Uint64(p[24:]), le.Uint64(p[32:])},
		created: int64(le.Uint64(p[40:])),
	}
	layout := p[64 : 64+layoutSize]
	for i, b := range layout {
		if b == 0 {
			layout = layout[:i]
			break
		}
	}
	h.layout = string(layout)
	copy(h.fingerprint[:], p[1088:1120])
	return h, nil
}

// frameHeader is the fixed part of a frame.
type frameHeader struct {
	fileID        // its rank is not stored
	headLen int64 // header and table
	total   int64
	entries int
	number  uint64
	synced  uint64
}

// encodeFrameHeader fills the first bytes of p, which holds header and table.
func encodeFrameHeader(p []byte, h frameHeader) {
	clear(p[:frameHeaderSize])
	copy(p, frameMagic)
	le.PutUint16(p[4:], formatVersion)
	le.PutUint32(p[8:], uint32(h.headLen))
	le.PutUint32(p[12:], uint32(h.entries))
	le.PutUint64(p[16:], uint64(h.total))
	le.PutUint64(p[24:], h.incarnation)
	le.PutUint64(p[32:], h.number)
	le.PutUint64(p[40:], h.fileID.number)
	le.PutUint64(p[48:], h.synced)
	le.PutUint32(p[60:], frameCRC(p[:h.headLen]))
}

func frameCRC(p []byte) uint32 {
	return block.ExtendCRC(block.CRC(p[:60]), p[frameHeaderSize:])
}

// decodeFrameHeader reads the fixed part only: sizes are checked, the CRC is
// not. Errors match ErrBadFormat.
func decodeFrameHeader(p []byte) (frameHeader, error) {
	if len(p) < frameHeaderSize || string(p[:4]) != frameMagic {
		return frameHeader{}, badFormat("no frame")
	}
	if v := le.Uint16(p[4:]); v != formatVersion {
		return frameHeader{}, badFormat("frame version %d", v)
	}
	h := frameHeader{
		fileID:  fileID{incarnation: le.Uint64(p[24:]), number: le.Uint64(p[40:])},
		headLen: int64(le.Uint32(p[8:])),
		entries: int(le.Uint32(p[12:])),
		total:   int64(le.Uint64(p[16:])),
		number:  le.Uint64(p[32:]),
		synced:  le.Uint64(p[48:]),
	}
	if h.headLen < frameHeaderSize || h.headLen > maxTable || h.total%pageSize != 0 || h.total < align(h.headLen) {
		return frameHeader{}, badFormat("frame of %d bytes with a header of %d", h.total, h.headLen)
	}
	return h, nil
}

// decodeFrame reads header and entry table. p must hold both. Errors match
// ErrBadFormat.
func decodeFrame(p []byte) (frameHeader, []entry, error) {
	h, err := decodeFrameHeader(p)
	if err != nil {
		return h, nil, err
	}
	if int64(len(p)) < h.headLen {
		return h, nil, badFormat("frame header cut after %d of %d bytes", len(p), h.headLen)
	}
	p = p[:h.headLen]
	if le.Uint32(p[60:]) != frameCRC(p) {
		return h, nil, badFormat("frame header fails its checksum")
	}
	entries, err := decodeTable(nil, p[frameHeaderSize:], frameHeaderSize, h.entries, h.total)
	return h, entries, err
}

// encodeFooter returns a whole footer for a file whose frames end at off.
// table holds the entries as a footer has them.
func encodeFooter(id fileID, off int64, frames, entries int, table []byte) []byte {
	size := align(footerHeadSize + int64(len(table)) + trailerSize)
	p := make([]byte, size)
	copy(p, footerMagic)
	le.PutUint16(p[4:], formatVersion)
	le.PutUint32(p[8:], uint32(frames))
	le.PutUint32(p[12:], uint32(entries))
	le.PutUint64(p[16:], uint64(len(table)))
	le.PutUint64(p[24:], id.incarnation)
	le.PutUint64(p[32:], id.number)
	copy(p[footerHeadSize:], table)
	t := p[size-trailerSize:]
	le.PutUint64(t, uint64(off))
	le.PutUint64(t[8:], uint64(size))
	le.PutUint32(t[16:], block.CRC(p[:size-trailerSize]))
	le.PutUint32(t[20:], block.CRC(t[:20]))
	copy(t[24:], trailerMagic)
	return p
}

// decodeTrailer reads the last bytes of a file of fileSize bytes and returns
// where its footer lies; false when the file is not sealed.
func decodeTrailer(t []byte, fileSize int64) (off, size int64, ok bool) {
	if len(t) != trailerSize || string(t[24:]) != trailerMagic || le.Uint32(t[20:]) != block.CRC(t[:20]) {
		return 0, 0, false
	}
	off, size = int64(le.Uint64(t)), int64(le.Uint64(t[8:]))
	ok = off >= pageSize && off%pageSize == 0 && size >= pageSize && size <= fileSize && off == fileSize-size
	return off, size, ok
}

// decodeFooter appends to out what a whole footer has whose frames end at off.
// Errors match ErrBadFormat.
func decodeFooter(out []entry, p []byte, id fileID, off int64) ([]entry, error) {
	if len(p) < pageSize || string(p[:4]) != footerMagic {
		return nil, badFormat("no footer")
	}
	if v := le.Uint16(p[4:]); v != formatVersion {
		return nil, badFormat("footer version %d", v)
	}
	t := p[len(p)-trailerSize:]
	table := le.Uint64(p[16:])
	switch {
	case le.Uint32(t[16:]) != block.CRC(p[:len(p)-trailerSize]):
		return nil, badFormat("footer fails its checksum")
	case le.Uint64(p[24:]) != id.incarnation || le.Uint64(p[32:]) != id.number:
		return nil, badFormat("footer of file %d of incarnation %016x", le.Uint64(p[32:]), le.Uint64(p[24:]))
	case table > uint64(len(p)-footerHeadSize-trailerSize):
		return nil, badFormat("footer table of %d bytes", table)
	}
	return decodeTable(out, p[footerHeadSize:footerHeadSize+int(table)], 0, int(le.Uint32(p[12:])), off)
}
