package directory

import (
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// Statement is what Owner states of one name.
type Statement struct {
	Name block.Name // Seq is the put stamp
	Info block.Info // zero when the owner has no copy

	Owner       fabric.Rank
	Incarnation uint64 // of the owner's process
	Version     uint64 // larger than that of every earlier statement of this incarnation about this name

	Memory  *Memory  // a copy in the owner's arena; dies with the incarnation
	Segment *Segment // a copy in the shared file system; outlives the owner
}

// Read is a block that is to be read out of an owner's memory.
type Read struct {
	Copies []Statement // where it is
	Dst    []byte
	Err    error // how it went
}

// Memory is a block's place in a rank's arena.
type Memory struct {
	Region     uint32
	Offset     int64
	Generation uint64
}

// Segment is a block's place in the shared file system; see tiers.Segment.
type Segment struct {
	Path      string // relative to the directory that all ranks share
	Offset    int64
	Stored    int64
	StoredCRC uint32
	Codec     uint8
}

// Has reports whether the owner has a copy.
func (s *Statement) Has() bool { return s.Memory != nil || s.Segment != nil }

// ended reports whether it withdraws the copy of a put that has ended: puts before that
// must not come back for it.
func (s *Statement) ended() bool { return !s.Has() && !s.Name.Expires.IsZero() }

// Inherit is for a statement that takes the place of an older one of its owner, which nobody
// has received: of a put that is gone it keeps what that one says.
func (s *Statement) Inherit(old *Statement) {
	if !s.Has() && !old.Has() && s.Name.Seq < old.Name.Seq {
		s.Name.Seq, s.Name.Expires = old.Name.Seq, old.Name.Expires
	}
}

// claims reports whether the owner is about to write bytes to segments (Contents).
func (s *Statement) claims() bool {
	return s.Name.Namespace == Contents && s.Memory != nil && s.Segment == nil
}

// Newer reports whether the same owner made s after o.
func (s *Statement) Newer(o *Statement) bool {
	if s.Incarnation != o.Incarnation {
		return s.Incarnation > o.Incarnation
	}
	return s.Version > o.Version
}

// Source is where to read the copy in memory.
func (s *Statement) Source() fabric.Source {
	return fabric.Source{Region: s.Memory.Region, Offset: s.Memory.Offset, Length: s.Info.Size, Generation: s.Memory.Generation}
}

// expired reports whether the name has ended.
func (s *Statement) expired(now time.Time) bool {
	return !s.Name.Expires.IsZero() && !now.Before(s.Name.Expires)
}

// Agrees reports whether two statements about a name are about the same bytes.
// Ids decide where both are final. A rank that has not hashed its copy yet is
// believed by put stamp, size and checksum: copies made by reading keep the
// stamp of what they were read from.
func (s *Statement) Agrees(o *Statement) bool {
	if s.Info.Size != o.Info.Size || s.Info.CRC != o.Info.CRC || !s.Name.Expires.Equal(o.Name.Expires) {
		return false
	}
	if s.Info.ID.IsProvisional() || o.Info.ID.IsProvisional() {
		return s.Name.Seq == o.Name.Seq
	}
	return s.Info.ID == o.Info.ID
}

// contradicts reports whether two statements about a name are certainly about
// different bytes, or about different ends: to change when a name ends is to put
// it again.
func (s *Statement) contradicts(o *Statement) bool {
	if s.Info.Size != o.Info.Size || s.Info.CRC != o.Info.CRC || !s.Name.Expires.Equal(o.Name.Expires) {
		return true
	}
	return !s.Info.ID.IsProvisional() && !o.Info.ID.IsProvisional() && s.Info.ID != o.Info.ID
}
