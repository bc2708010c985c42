package mpi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cascadekv/dht/fabric"
)

// Sizes of control messages, in bytes. Both MPIs send inboxSize eagerly: in one
// step, without a handshake.
const (
	headerSize = 32
	readSize   = 32
	inboxSize  = 3584
	maxInline  = inboxSize - headerSize // longer bodies travel as data
)

const (
	wireMagic   = 0xCA5D
	wireVersion = 1
)

// kind is what a control message is.
type kind uint8

const (
	kindCall   kind = 1 // body: the request
	kindAnswer kind = 2 // body: the answer, or the error's text
	kindRead   kind = 3 // body: the source
	kindStatus kind = 4 // how a read or a check went; body: the error's text
	kindCheck  kind = 5 // body: the source, of which only the status is asked
)

// status is how a request went.
type status uint8

const (
	statusOK       status = 0
	statusStale    status = 1
	statusError    status = 2 // the body is the handler's error
	statusTooLarge status = 3
	statusClosed   status = 4 // nobody serves
	statusRefused  status = 5 // another version
)

// flagData means that the body comes as data, with the request's tag.
const flagData = 1

// header begins every control message.
type header struct {
	kind    kind
	status  status
	flags   uint8
	id      uint64        // of the request, unique to the asking rank
	tag     uint32        // of the request's data: even towards the asking rank, odd away from it
	length  uint32        // of the body, in bytes
	timeout time.Duration // left when the request was made; 0 in answers
}

// Errors of decoding.
var (
	errMessage = errors.New("fabric mpi: malformed control message")
	errVersion = errors.New("fabric mpi: the peer speaks another version")
)

// encode writes h to b, which has room for it.
func (h header) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint16(b, wireMagic)
	b[2], b[3] = wireVersion, byte(h.kind)
	b[4], b[5], b[6], b[7] = byte(h.status), h.flags, 0, 0
	le.PutUint64(b[8:], h.id)
	putTag(b, h.tag)
	le.PutUint32(b[20:], h.length)
	le.PutUint64(b[24:], uint64(h.timeout))
}

// putTag sets the tag of an encoded header.
func putTag(b []byte, tag uint32) { binary.LittleEndian.PutUint32(b[16:], tag) }

// decode reads a control message. body is part of b, nil if it comes as data.
// With errVersion, h has the id.
func decode(b []byte) (h header, body []byte, err error) {
	le := binary.LittleEndian
	if len(b) < headerSize || le.Uint16(b) != wireMagic {
		return h, nil, errMessage
	}
	h = header{
		kind: kind(b[3]), status: status(b[4]), flags: b[5], id: le.Uint64(b[8:]),
		tag: le.Uint32(b[16:]), length: le.Uint32(b[20:]), timeout: time.Duration(le.Uint64(b[24:])),
	}
	if b[2] != wireVersion {
		return h, nil, errVersion
	}
	body = b[headerSize:]
	switch {
	case h.kind < kindCall || h.kind > kindCheck || h.status > statusRefused || h.flags > flagData || h.timeout < 0:
	case h.tag < firstTag || h.tag >= firstTag+2*tagPairs || h.tag%2 != 0:
	case h.length > fabric.MaxMessage:
	case h.flags == flagData && (len(body) != 0 || h.kind >= kindRead):
	case h.flags != flagData && len(body) != int(h.length):
	case (h.kind == kindRead || h.kind == kindCheck) && h.length != readSize:
	case h.flags == flagData:
		return h, nil, nil
	default:
		return h, body, nil
	}
	return h, nil, errMessage
}

// encodeSource writes the body of a read or a check to b, which has room for it.
func encodeSource(b []byte, s fabric.Source) {
	le := binary.LittleEndian
	le.PutUint32(b, s.Region)
	le.PutUint32(b[4:], 0)
	le.PutUint64(b[8:], uint64(s.Offset))
	le.PutUint64(b[16:], uint64(s.Length))
	le.PutUint64(b[24:], s.Generation)
}

// decodeSource reads the body of a read or a check, of readSize bytes.
func decodeSource(b []byte) (fabric.Source, error) {
	le := binary.LittleEndian
	s := fabric.Source{Region: le.Uint32(b), Offset: int64(le.Uint64(b[8:])), Length: int64(le.Uint64(b[16:])), Generation: le.Uint64(b[24:])}
	if s.Length < 0 || s.Length > fabric.MaxRead || le.Uint32(b[4:]) != 0 {
		return s, errMessage
	}
	return s, nil
}

// err is what a status means to the rank that asked.
func (s status) err(peer fabric.Rank, text string) error {
	switch s {
	case statusOK:
		return nil
	case statusStale:
		return fabric.ErrStale
	case statusTooLarge:
		return fabric.ErrTooLarge
	case statusClosed:
		return fabric.ErrUnreachable
	case statusRefused:
		return fmt.Errorf("%w: %w", fabric.ErrRefused, errVersion)
	}
	return &fabric.RemoteError{Peer: peer, Text: text}
}

// statusOf is how a handler's error travels.
func statusOf(err error) (status, string) {
	switch {
	case err == nil:
		return statusOK, ""
	case errors.Is(err, fabric.ErrStale):
		return statusStale, ""
	}
	text := err.Error()
	return statusError, text[:min(len(text), maxInline)]
}

// Tags. Control messages have one; each request has a pair for its data. A pair
// is used again after all others, which makes a late message harmless, and only
// if no request has it any more.
const (
	controlTag = 1
	firstTag   = 1024
	tagPairs   = 4_000_000 // so that the last tag is below mpi.MaxTag
)

// tags hands out pairs.
type tags struct {
	used []uint64 // a bit for each pair
	next uint32
	busy int
}

func newTags() *tags { return &tags{used: make([]uint64, tagPairs/64)} }

// take returns the even tag of a free pair; false when none is free.
func (t *tags) take() (uint32, bool) {
	if t.busy == tagPairs {
		return 0, false
	}
	for t.used[t.next/64]&(1<<(t.next%64)) != 0 {
		t.next = (t.next + 1) % tagPairs
	}
	pair := t.next
	t.used[pair/64] |= 1 << (pair % 64)
	t.next = (pair + 1) % tagPairs
	t.busy++
	return firstTag + 2*pair, true
}

// give takes back what take returned.
func (t *tags) give(tag uint32) {
	pair := (tag - firstTag) / 2
	t.used[pair/64] &^= 1 << (pair % 64)
	t.busy--
}
