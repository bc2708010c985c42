package hangfs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Requests of linux/fuse.h that are known here.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opRelease     = 18
	opFlush       = 25
	opInit        = 26
	opInterrupt   = 36
	opBatchForget = 42
)

const (
	requestHeader = 40
	replyHeader   = 16
	attrSize      = 88

	rootNode     = 1
	openDirectIO = 1
)

var le = binary.LittleEndian

// request is one message of the kernel.
type request struct {
	op     uint32
	unique uint64
	node   uint64
	body   []byte
}

// decode reads a message; false when it is too short to be one.
func decode(p []byte) (request, bool) {
	if len(p) < requestHeader || int(le.Uint32(p)) != len(p) {
		return request{}, false
	}
	return request{le.Uint32(p[4:]), le.Uint64(p[8:]), le.Uint64(p[16:]), p[requestHeader:]}, true
}

// encode makes a reply. A failed one has no body.
func encode(unique uint64, errno unix.Errno, body []byte) []byte {
	if errno != 0 {
		body = nil
	}
	p := make([]byte, replyHeader, replyHeader+len(body))
	le.PutUint32(p, uint32(replyHeader+len(body)))
	le.PutUint32(p[4:], uint32(-int32(errno)))
	le.PutUint64(p[8:], unique)
	return append(p, body...)
}

func initReply() []byte {
	p := make([]byte, 64)
	le.PutUint32(p, 7)
	le.PutUint32(p[4:], 31)
	le.PutUint16(p[16:], 64)    // requests in the background
	le.PutUint16(p[18:], 64)    // the same, before it is said to be congested
	le.PutUint32(p[20:], 1<<17) // bytes of a write
	le.PutUint32(p[24:], 1)     // nanoseconds of a time stamp
	le.PutUint32(p[8:], 0)      // no reading ahead
	return p
}

// attr describes a node: the root, or a file of size bytes.
func attr(node uint64, size int) []byte {
	p := make([]byte, attrSize)
	le.PutUint64(p, node)
	le.PutUint64(p[8:], uint64(size))
	mode := uint32(unix.S_IFREG | 0o400)
	if node == rootNode {
		mode = unix.S_IFDIR | 0o500
	}
	le.PutUint32(p[60:], mode)
	le.PutUint32(p[64:], 1) // links
	le.PutUint32(p[80:], 4096)
	return p
}

// valid is how long the kernel may remember the answers, in seconds.
const valid = 3600

func entryReply(node uint64, size int) []byte {
	p := make([]byte, 40)
	le.PutUint64(p, node)
	le.PutUint64(p[16:], valid)
	le.PutUint64(p[24:], valid)
	return append(p, attr(node, size)...)
}

func attrReply(node uint64, size int) []byte {
	p := make([]byte, 16)
	le.PutUint64(p, valid)
	return append(p, attr(node, size)...)
}

func openReply() []byte {
	p := make([]byte, 16)
	le.PutUint32(p[8:], openDirectIO)
	return p
}
