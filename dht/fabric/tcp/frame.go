package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cascadekv/dht/fabric"
)

// headerSize is the length of every frame's header, in bytes.
const headerSize = 24

// readSize is the length of a read's body, in bytes.
const readSize = 32

// kind is what a frame is.
type kind byte

const (
	kindCall    kind = iota + 1 // body: the request; number: nanoseconds left
	kindAnswer                  // body: the answer
	kindFailure                 // body: the text of the handler's error
	kindCancel                  // nobody waits for the answer any more
	kindRead                    // body: the source; number: nanoseconds left
	kindPayload                 // number: bytes of payload that follow the frame
	kindStale                   // instead of a payload
)

// errFrame is a frame that does not belong there. The stream is of no use then.
var errFrame = errors.New("broken frame")

// header begins every frame.
type header struct {
	kind   kind
	length int    // bytes of body
	id     uint64 // of a call: chosen by the caller, repeated in the answer
	number uint64 // see the kinds
}

// encode writes h into b.
func (h header) encode(b *[headerSize]byte) {
	*b = [headerSize]byte{0: byte(h.kind)}
	binary.LittleEndian.PutUint32(b[4:], uint32(h.length))
	binary.LittleEndian.PutUint64(b[8:], h.id)
	binary.LittleEndian.PutUint64(b[16:], h.number)
}

// frame returns h followed by body in one piece. h.length is set.
func (h header) frame(body []byte) []byte {
	h.length = len(body)
	b := make([]byte, headerSize+len(body))
	h.encode((*[headerSize]byte)(b))
	copy(b[headerSize:], body)
	return b
}

// decode reads a header. An error matches errFrame. A decoded length fits the
// kind and is at most fabric.MaxMessage; number is at most fabric.MaxRead in a
// payload.
func decode(b *[headerSize]byte) (header, error) {
	h := header{
		kind:   kind(b[0]),
		id:     binary.LittleEndian.Uint64(b[8:]),
		number: binary.LittleEndian.Uint64(b[16:]),
	}
	length := binary.LittleEndian.Uint32(b[4:])
	if b[1]|b[2]|b[3] != 0 {
		return header{}, fmt.Errorf("%w: reserved bytes are set", errFrame)
	}
	most, numbered, named := uint32(0), false, true
	switch h.kind {
	case kindCall:
		most, numbered = fabric.MaxMessage, true
	case kindAnswer:
		most = fabric.MaxMessage
	case kindFailure:
		most = errorText
	case kindCancel:
	case kindRead:
		most, numbered, named = readSize, true, false
	case kindPayload:
		numbered, named = true, false
	case kindStale:
		named = false
	default:
		return header{}, fmt.Errorf("%w: unknown kind %d", errFrame, h.kind)
	}
	switch {
	case length > most, h.kind == kindRead && length != readSize:
		return header{}, fmt.Errorf("%w: kind %d with %d bytes", errFrame, h.kind, length)
	case !numbered && h.number != 0, !named && h.id != 0, h.kind == kindPayload && h.number > fabric.MaxRead:
		return header{}, fmt.Errorf("%w: kind %d with id %d and number %d", errFrame, h.kind, h.id, h.number)
	}
	h.length = int(length)
	return h, nil
}

// encodeRead returns the whole frame of a read.
func encodeRead(src fabric.Source, left uint64) (b [headerSize + readSize]byte) {
	header{kind: kindRead, length: readSize, number: left}.encode((*[headerSize]byte)(b[:]))
	body := b[headerSize:]
	binary.LittleEndian.PutUint32(body, src.Region)
	binary.LittleEndian.PutUint64(body[8:], uint64(src.Offset))
	binary.LittleEndian.PutUint64(body[16:], uint64(src.Length))
	binary.LittleEndian.PutUint64(body[24:], src.Generation)
	return b
}

// decodeRead reads the body of a read. Its length is 0 to fabric.MaxRead; its
// offset is anything.
func decodeRead(b *[readSize]byte) (fabric.Source, error) {
	src := fabric.Source{
		Region:     binary.LittleEndian.Uint32(b[:]),
		Offset:     int64(binary.LittleEndian.Uint64(b[8:])),
		Length:     int64(binary.LittleEndian.Uint64(b[16:])),
		Generation: binary.LittleEndian.Uint64(b[24:]),
	}
	if binary.LittleEndian.Uint32(b[4:]) != 0 || src.Length < 0 || src.Length > fabric.MaxRead {
		return fabric.Source{}, fmt.Errorf("%w: a read of %d bytes", errFrame, src.Length)
	}
	return src, nil
}
