package shmindex

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// The layout of a table, a ring and holds, docs/format.md §6.
const (
	tableMagic = "CASCIDX1"
	ringMagic  = "CASCTCH1"
	holdsMagic = "CASCHLD1"

	tableVersion = 2 // what is written; 1, which had no features, is read too
	ringVersion  = 1
	holdsVersion = 1

	headerBytes = 4096
	lane        = 64 // a cache line: the tags of a bucket, an entry
	bucketSlots = 8

	offVersion = 8
	offBuckets = 12
	offSize    = 16
	offNumber  = 24
	offArena   = 32
	offFeature = 40 // bits of what a reader must know
	offOwner   = 64
	offState   = 68
	offFinal   = 72
	offTiers   = 128
	tierBytes  = 16
	maxTiers   = 8
	offLoads   = offTiers + maxTiers*tierBytes
	loadBytes  = 16

	entryKind    = 4
	entryTier    = 6
	entryPrint   = 8
	entryExpires = 24
	entrySize    = 32 // and CRC
	entryOffset  = 40
	entryRecord  = 48
	entryUID     = 56

	holdsAllowance = 16
	holdsEnded     = 24
	holdsTaken     = 64
	holdsHeld      = 72
	holdsSlot      = 128
	holdsSlots     = 256
	holdsBytes     = holdsSlot + 8*holdsSlots

	ringHead   = 64
	ringSpaces = 72
	ringWords  = 76 // words for notes
	ringNoted  = 80 // words of notes that were ever written
	ringPlace  = 128
	RingSlots  = 16384 // touches that a ring has room for
	ringCounts = ringPlace + 8*RingSlots
	ringNote   = ringCounts + maxCounts*countBytes
	ringNotes  = 32768
	ringBytes  = ringNote + 8*ringNotes

	maxCounts  = 16 // namespaces of which a client counts look-ups
	countBytes = 256
	countName  = 24 // bytes of the namespace, 0: free; the name follows
	maxCounted = countBytes - countName - 4
)

// States of a table.
const (
	stateUsed       = 1
	stateSuperseded = 2 // a larger one is there
	stateClosed     = 3
)

// ownerDied is what the kernel sets in the owner word: FUTEX_OWNER_DIED.
const ownerDied = 1 << 30

// Kind is what an entry has of its name.
type Kind uint16

const (
	// InArena: the block is in the arena, and the entry says where.
	InArena Kind = iota + 1
	// Here: this rank has the block, but not in the arena.
	Here
	// Bound: whether the name can be seen depends on another one. The rank
	// knows.
	Bound
)

// Entry is what a table has of a name.
type Entry struct {
	Kind    Kind
	Tier    uint16 // the fastest that has the block, by its number among the table's tiers
	Expires int64  // Unix nanoseconds, 0: never
	Size    uint32 // of the block, in bytes
	CRC     uint32 // CRC32C of the block
	Offset  uint64 // of the block in the arena file; as the next two, only InArena
	Record  uint64 // of its record in the arena file
	UID     uint64 // which is in the record
}

// Load is how long loads from a tier take, by estimate; zeros: not known.
type Load struct {
	Latency time.Duration // of each
	PerByte float64       // nanoseconds
}

// Fingerprint stands for a name. Names with equal ones are equal: nobody can
// find two names that are not, SHA-256 being what it is.
type Fingerprint [16]byte

// FingerprintOf returns the fingerprint of (namespace, key). The namespace fills
// whole blocks of the hash, so that readers compute them once for many keys.
func FingerprintOf(namespace, key string) Fingerprint {
	var room [2 + 1024 + lane + 1024]byte
	p := binary.LittleEndian.AppendUint16(room[:0], uint16(len(namespace)))
	p = append(p, namespace...)
	p = append(p, make([]byte, -len(p)&(lane-1))...)
	p = append(p, key...)
	sum := sha256.Sum256(p)
	return Fingerprint(sum[:16])
}

// tag stands for the fingerprint in a bucket, never 0.
func (f Fingerprint) tag() uint64 { return max(binary.LittleEndian.Uint64(f[:8]), 1) }

// buckets are the two that f may be in.
func (f Fingerprint) buckets(mask uint32) (a, b uint32) {
	return binary.LittleEndian.Uint32(f[8:12]) & mask, binary.LittleEndian.Uint32(f[12:16]) & mask
}
