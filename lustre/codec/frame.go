package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
)

// Effort is how hard an encoder searches. Decoders do not care.
type Effort uint8

// The two efforts. Exponents of floats have no repetitions worth finding:
// there Huffman coding alone is some four times as fast as zstd's fastest
// level and saves more, because the short matches that zstd finds cost more
// than the literals they replace.
const (
	Huffman Effort = iota // literals only
	Matches               // zstd's fastest level, with literals always coded
)

// huffmanFloor is the least plane that huffmanFrame codes: below it zstd is
// fast enough, and a code in four streams is not worth its tables.
const huffmanFloor = 1024

// encoders are the tools of one worker.
type encoders struct {
	huffman huff0.Scratch
	matches *zstd.Encoder
	room    []byte // for one frame; capacity frameRoom
}

// frameRoom is more than any frame of a plane takes before it is found to be
// too long.
const frameRoom = maxPlane + 1<<10

// frame returns p as one zstd frame if that is shorter than p, and nil
// otherwise. The result is valid until the next call.
func (e *encoders) frame(p []byte, effort Effort) ([]byte, error) {
	if len(p) == 0 {
		return nil, nil
	}
	var out []byte
	var err error
	if effort == Huffman && len(p) >= huffmanFloor {
		out, err = e.huffmanFrame(p)
	} else {
		out, err = e.matchFrame(p)
	}
	if err != nil || len(out) >= len(p) {
		return nil, err
	}
	return out, nil
}

// matchFrame lets zstd do all of it.
func (e *encoders) matchFrame(p []byte) ([]byte, error) {
	if e.matches == nil {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithAllLitEntropyCompression(true),
			zstd.WithWindowSize(maxPlane), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
		if err != nil {
			return nil, fmt.Errorf("codec: %w", err)
		}
		e.matches = enc
	}
	return e.matches.EncodeAll(p, e.room[:0]), nil
}

// huffmanFrame writes a frame of one block without sequences: all of p is
// literals, in the four-stream form that huff0 makes.
func (e *encoders) huffmanFrame(p []byte) ([]byte, error) {
	e.huffman.Reuse = huff0.ReusePolicyNone
	coded, _, err := huff0.Compress4X(p, &e.huffman)
	switch {
	case err == huff0.ErrIncompressible:
		return nil, nil
	case err == huff0.ErrUseRLE:
		return append(e.begin(len(p), blockRLE, len(p)), p[0]), nil
	case err != nil:
		return nil, fmt.Errorf("codec: Huffman coding of %d bytes: %w", len(p), err)
	}
	const literalHead, sequences = 5, 1
	out := e.begin(len(p), blockCompressed, literalHead+len(coded)+sequences)
	// Literals section: compressed, four streams, both sizes in 18 bits.
	head := uint64(2) | 3<<2 | uint64(len(p))<<4 | uint64(len(coded))<<22
	out = append(out, byte(head), byte(head>>8), byte(head>>16), byte(head>>24), byte(head>>32))
	out = append(out, coded...)
	return append(out, 0), nil // none
}

// Parts of a zstd frame, RFC 8878 §3.1.1.
const (
	frameHead = 4 + 1 + 4 // magic, descriptor, content size
	blockHead = 3

	blockRLE        = 1
	blockCompressed = 2
)

// begin writes the header of a frame with size bytes of content, and that of
// its only block.
func (e *encoders) begin(content int, kind, size int) []byte {
	out := append(e.room[:0], 0x28, 0xb5, 0x2f, 0xfd)
	out = append(out, 2<<6|1<<5) // content size in 4 bytes, single segment
	out = binary.LittleEndian.AppendUint32(out, uint32(content))
	head := uint32(1 | kind<<1 | size<<3) // the last block
	return append(out, byte(head), byte(head>>8), byte(head>>16))
}

// newDecoder returns a decoder that gives up before it needs memory beyond
// the destination.
func newDecoder() (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(maxPlane), zstd.WithDecoderMaxWindow(maxPlane))
	if err != nil {
		return nil, fmt.Errorf("codec: %w", err)
	}
	return d, nil
}

// constant returns the byte that all of a plane of size bytes consists of when
// p is the frame that huffmanFrame writes for it. The decoder would fill the
// plane byte by byte.
func constant(p []byte, size int) (value byte, ok bool) {
	if len(p) != frameHead+blockHead+1 || string(p[:5]) != "\x28\xb5\x2f\xfd\xa0" {
		return 0, false
	}
	head := uint32(p[9]) | uint32(p[10])<<8 | uint32(p[11])<<16
	return p[12], binary.LittleEndian.Uint32(p[5:]) == uint32(size) && head == uint32(1|blockRLE<<1|size<<3)
}

func fill(dst []byte, value byte) {
	if len(dst) == 0 {
		return
	}
	dst[0] = value
	for done := 1; done < len(dst); done *= 2 {
		copy(dst[done:], dst[:done])
	}
}

// decodeFrame fills dst from the frame p.
func decodeFrame(d *zstd.Decoder, dst, p []byte) error {
	if value, ok := constant(p, len(dst)); ok {
		fill(dst, value)
		return nil
	}
	out, err := d.DecodeAll(p, dst[:0:len(dst)])
	if err != nil {
		return corrupt("plane of %d bytes: %v", len(dst), err)
	}
	if len(out) != len(dst) || len(dst) > 0 && &out[0] != &dst[0] {
		return corrupt("frame of %d bytes for a plane of %d", len(out), len(dst))
	}
	return nil
}
