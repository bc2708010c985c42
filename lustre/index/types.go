package index

import (
	"cmp"
	"crypto/sha256"
	"time"

	"cascadekv/internal/block"
)

// Namespace is the hash of a namespace's text.
type Namespace [16]byte

// Key is the hash of a name: what the index has of (namespace, key). The zero
// Key is nobody's.
type Key [16]byte

// NamespaceOf hashes the text of a namespace.
func NamespaceOf(text string) Namespace {
	sum := sha256.Sum256([]byte(text))
	return Namespace(sum[:16])
}

// Key hashes a key in the namespace. Keys of up to 112 bytes cost no allocation.
func (n Namespace) Key(key string) Key {
	var room [128]byte
	sum := sha256.Sum256(append(append(room[:0], n[:]...), key...))
	return Key(sum[:16])
}

// Segment identifies a segment file among those of all ranks and incarnations.
type Segment struct {
	Rank        uint32
	Incarnation uint64
	File        uint64
}

// supersedes reports whether of two copies of a block, or of one record of a name, that in s counts for a
// rank: its own come first, then those of runs that began later.
func (s Segment) supersedes(other Segment, rank uint32) bool {
	if own := s.Rank == rank; own != (other.Rank == rank) {
		return own
	}
	return cmp.Or(cmp.Compare(s.Incarnation, other.Incarnation), cmp.Compare(s.File, other.File), cmp.Compare(s.Rank, other.Rank)) > 0
}

// Place is where a block lies.
type Place struct {
	Segment   Segment
	Offset    int64  // where the payload starts, in bytes from the start of the file
	Stored    int64  // bytes of the payload as stored; with codec 0 that is the block's size
	StoredCRC uint32 // CRC32C of them; with codec 0 that is the block's
	Codec     uint8
}

// Block is a block and where it lies.
type Block struct {
	Info  block.Info
	Place Place
}

// Name is a name record that lies in a segment.
type Name struct {
	Key      Key
	Parent   Key // zero at a chain head
	ID       block.ID
	Depth    uint32 // blocks before it in its chain
	Seq      uint64 // of records of one name the highest counts
	Expires  time.Time
	Prefix   bool
	Bound    bool
	Inferred bool
	Dropped  bool // the name was withdrawn as of Seq: only Key and Seq count
	Hides    bool // there was a record of it in another part's segment, which may still be there; the index finds out
	Outlived bool // there was an older record of it that expires later, or never, which may still be there; the index finds out

	// Note is up to 4 KiB of the caller's, kept with the record, such as the
	// texts of which the rest has the hashes.
	Note string
}

// Entry is what is known of one name: its record, whose Key is zero when there
// is none, and its block, whose id is zero when the name leads nowhere: it was
// withdrawn, has expired, or its block is gone.
type Entry struct {
	Name    Name
	Segment Segment // where the name's record lies
	Block   Block
}

// NameOf returns the record that n names the block id.
func NameOf(id block.ID, n block.Name) Name { return NamespaceOf(n.Namespace).Name(id, n) }

// Name is NameOf for a name of the namespace, which is not hashed again.
func (ns Namespace) Name(id block.ID, n block.Name) Name {
	r := Name{Key: ns.Key(n.Key), ID: id, Depth: n.Depth, Seq: n.Seq, Expires: n.Expires, Prefix: n.Prefix, Bound: n.Bound, Inferred: n.Inferred}
	if n.Parent != "" {
		r.Parent = ns.Key(n.Parent)
	}
	return r
}

// Batch is entries of one segment that were written, and made durable there,
// together.
type Batch struct {
	Segment Segment
	Mark    uint64  // how far the segment is indexed once the batch is; never goes back, but see Behind
	Blocks  []Block // Place.Segment is ignored: it is the batch's
	Count   bool    // these copies of the blocks count, whatever other segments have them: the segment has them already
	Names   []Name  // their blocks may lie in other segments
	Behind  *bool   // set to true if some of Blocks do not count, and Mark is then as in this batch whatever it was; nil: nobody asks

	// Spaces are namespaces that Space is to know. They replace what is known of them.
	Spaces []Space
}

// Space is a namespace: its text, of at most 64 KiB, and how its blocks are made, as of
// Seq; 0 when nobody said.
type Space struct {
	Text   string
	Seq    uint64
	Layout block.Layout
}

// SegmentState is what the index has of one segment.
type SegmentState struct {
	Segment Segment
	Mark    uint64
	Entries uint64 // blocks and names that were put, replaced ones included
	Blocks  uint64 // that were put
	Names   uint64 // that were put, withdrawn ones not
	Bytes   uint64 // of Blocks
	Stale   uint64 // of Names, those that another record of the name has replaced
	Ended   bool   // all of Names have expired
}

func (b Batch) check() error {
	for _, it := range b.Blocks {
		if it.Info.ID.IsZero() || it.Info.ID.IsProvisional() || it.Info.Size < 0 || it.Info.Size > block.MaxSize {
			return badItem("block %v of %d bytes", it.Info.ID, it.Info.Size)
		}
		p := it.Place
		if p.Offset < 0 || p.Stored < 0 {
			return badItem("block %v, %d bytes at %d", it.Info.ID, p.Stored, p.Offset)
		}
		if p.Codec == 0 && (p.Stored != it.Info.Size || p.StoredCRC != it.Info.CRC) {
			return badItem("block %v of %d bytes is stored in %d without a codec", it.Info.ID, it.Info.Size, p.Stored)
		}
	}
	for _, s := range b.Spaces {
		if err := s.Layout.Check(); err != nil || len(s.Text) > maxText {
			return badItem("a namespace of %d bytes: %v", len(s.Text), err)
		}
	}
	for _, n := range b.Names {
		if n.Key == (Key{}) || n.Depth > maxDepth || len(n.Note) > maxNote {
			return badItem("name %x at depth %d with a note of %d bytes", n.Key, n.Depth, len(n.Note))
		}
	}
	return nil
}
