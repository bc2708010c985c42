package format

import (
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
)

// Payload is a block's payload as it lies in the file.
type Payload struct {
	Size  int64
	CRC   uint32
	Codec codec.Number
}

// Plain is the payload of a block that is stored as it is.
func Plain(info block.Info) Payload { return Payload{Size: info.Size, CRC: info.CRC} }

// Fits reports whether the block may be stored so.
func (as Payload) Fits(info block.Info) bool {
	if as.Codec == codec.None {
		return as == Plain(info)
	}
	return 0 < as.Size && as.Size < info.Size
}

// Inline reports whether the payload lies in the entry.
func (as Payload) Inline() bool { return as.Size <= InlineMax }

// entrySize is the size of the BLOCK in a frame, with the payload if it lies there.
func (as Payload) entrySize() int64 {
	if as.Inline() {
		return BlockEntrySize + int64(align8(int(as.Size)))
	}
	return BlockEntrySize
}

// outside is the size of the payload, padded, where it does not lie in the entry.
func (as Payload) outside() int64 {
	if as.Inline() {
		return 0
	}
	return Align(as.Size)
}

// Footprint is what a block takes in a segment, its entries included.
func (as Payload) Footprint() int64 {
	if as.Inline() {
		return 2*BlockEntrySize + as.Size
	}
	return 2*BlockEntrySize + Align(as.Size)
}

// Check returns what is wrong with a payload, "" when it is right.
func (as Payload) Check(payload []byte) string {
	if crc := block.CRC(payload); crc != as.CRC {
		return fmt.Sprintf("CRC32C %08x, want %08x", crc, as.CRC)
	}
	return ""
}
