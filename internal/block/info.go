package block

import (
	"time"

	"cascadekv/internal/crc32c"
)

// MaxKey bounds a key, a parent key and a namespace, in bytes.
const MaxKey = 1024

// MaxSize bounds a block, in bytes: Redis's proto-max-bulk-len, which is what
// clients of the socket already obey.
const MaxSize = 512 << 20

// Info is what a tier must know about a block.
type Info struct {
	ID   ID
	Size int64  // payload bytes, 0..MaxSize
	CRC  uint32 // CRC32C of the payload
}

// Name is the entry (namespace, key) → block id with its place in a chain.
// Names are values; the strings are immutable.
type Name struct {
	Namespace string
	Key       string // opaque, 1..MaxKey bytes
	Parent    string // key of the preceding block in the same namespace, "" at a chain head
	Depth     uint32 // blocks before this one in its chain
	Prefix    bool   // the engine says this is a shared prefix (CASCADE equation 4)
	Bound     bool   // visible only while Parent is stored: the second half of a pair
	Inferred  bool   // nobody named Parent and Depth: they are a hint, concluded from the order of requests; not Bound

	// Seq orders writes of one name: the highest wins at recovery. It is a
	// hybrid clock (Unix nanoseconds, made monotonic), so it also orders
	// writes of different incarnations.
	Seq uint64

	// Expires is when the name stops being visible; the zero time means never.
	Expires time.Time
}

// IsName reports whether there can be a name (namespace, key): by their lengths alone.
func IsName(namespace, key string) bool {
	return len(namespace) <= MaxKey && len(key) >= 1 && len(key) <= MaxKey
}

// CRC returns the CRC32C (Castagnoli) of p.
func CRC(p []byte) uint32 { return crc32c.Checksum(p) }

// ExtendCRC returns the CRC32C of the bytes behind crc followed by p.
func ExtendCRC(crc uint32, p []byte) uint32 { return crc32c.Update(crc, p) }

// CopyCRC copies src to dst, which has as many bytes and does not overlap it,
// and returns the CRC32C of the bytes behind crc followed by them. It takes
// little longer than the copy alone.
func CopyCRC(crc uint32, dst, src []byte) uint32 { return crc32c.Copy(crc, dst, src) }
