package tiers

import (
	"context"

	"cascadekv/internal/block"
)

// Files is a tier that keeps blocks in files: it is written in batches, reads
// batches into memory of others, and gives space back by rewriting files. Ranks
// and jobs may share one directory, each filling a part of it and reading all.
// Plain has a default for each method that a simple tier has no use for.
type Files interface {
	Tier

	// Sync makes all records of Link and Unlink so far durable; until then, or
	// until the next Put, they may only be buffered. It may take long and obeys
	// its context. Errors: ErrUnavailable.
	Sync(ctx context.Context) error

	// ReadBatch copies each block into its Dst and verifies it, and returns one
	// error for each read, in order: nil, or what Pin.ReadInto or ReadSegment
	// would have returned. One block's error is not another's. It obeys its
	// context; a block that came in time is good all the same. If all reads
	// have Done, that obeys the context, and the call may return later.
	ReadBatch(ctx context.Context, reads []Read) []error

	// Segment returns where a stored block lies, for other ranks to read it.
	// Errors: ErrNotFound, also when other ranks cannot read this tier's files.
	Segment(id block.ID) (Segment, error)

	// ReadSegment reads a block that any rank, also one of an earlier job,
	// stored at the place at, and that need not be known here, into dst
	// (len(dst) == info.Size), verified: its CRC32C is right. Nothing that at
	// says can lead out of the shared directory. It obeys its context, but may
	// leave dst in use as Pin.ReadInto does. Errors: ErrNotFound (no such file,
	// or no more: a miss), ErrCorrupt (another block, a torn one, damage),
	// ErrUnavailable (also when the tier does not read files of other ranks).
	ReadSegment(ctx context.Context, at Segment, info block.Info, dst []byte) error

	// StoredSize returns the bytes that a block takes as it is stored, padding
	// excluded; info.Size where that is not known.
	StoredSize(info block.Info) int64

	// Merge rewrites some of what the tier holds so that it takes less space,
	// and returns what it did: after one that rewrote segments another call may
	// be worth it. With a budget, in bytes, it does so as far as needed to stay
	// within; 0 is none. A tier that is full does more, with no more room than
	// there is. moved is called with blocks whose Segment is another now; it must
	// return soon. Merge obeys its context, and gives way to requests. An error
	// comes with what was done before. Errors: ErrUnavailable, ErrFull.
	Merge(ctx context.Context, budget int64, moved func([]block.ID)) (Merged, error)

	// Sparsest returns what each of the n emptiest files that are worth it still holds,
	// the emptiest first. Evicting all of one makes room.
	Sparsest(n int) [][]block.ID

	// Missing checks whether the files that this process wrote are still there,
	// and returns the blocks that are not: the tier does not have them any more.
	// It obeys its context. Errors: ErrUnavailable, when that is not known.
	Missing(ctx context.Context) ([]block.ID, error)

	// Gone returns which of some files in the shared directory, each a Segment.Path of
	// any rank, are not there, in no order. It costs a listing of each directory
	// that they lie in, and obeys its context. Errors: ErrUnavailable, when that is not
	// known.
	Gone(ctx context.Context, paths ...string) ([]string, error)

	// Parts lists the parts of the directory, this process's own among them once
	// it has one; nil when ranks do not share it. Errors: ErrUnavailable.
	Parts(ctx context.Context) ([]Part, error)

	// Adopt recovers the blocks of a part, but for those adopted before, and calls
	// fn as Recover does, at any time. What its rank still writes there is adopted
	// as it is now. A part of this rank's own number may belong to a process that
	// lives; once that has ended Adopt makes it this process's own, and fn is
	// called for its blocks again, not OtherOwner any more. Errors: ErrUnavailable,
	// those of fn.
	Adopt(ctx context.Context, p Part, fn func(Entry) error) error

	// AdoptOrphan is Adopt for a part of another rank number, whose blocks are then
	// not OtherOwner: this process decides what stays of them. It is false, and fn is
	// not called, while somebody owns the part. Errors: those of Adopt.
	AdoptOrphan(ctx context.Context, p Part, fn func(Entry) error) (bool, error)

	// Spill has the Catalogue alone keep what one file of this process holds, which
	// takes no memory here then: its blocks are found by their names, and read by
	// ReadSegment. The tier chooses the file, one that is complete, the oldest first,
	// and calls let with its blocks; if that is false nothing changes, and the file is
	// left alone for a while. It reports whether a file was spilled. Errors:
	// ErrUnavailable.
	Spill(ctx context.Context, let func([]block.ID) bool) (bool, error)

	// Spilled lists the files that are spilled, the oldest first.
	Spilled() []SpilledFile

	// Reload undoes Spill: the tier has the file's blocks again, and fn is called for
	// them as Recover does. Errors: ErrNotFound (it is not spilled), ErrUnavailable,
	// with ErrNotNow while the Catalogue is being filled, those of fn.
	Reload(ctx context.Context, f SpilledFile, fn func(Entry) error) error

	// Nobodys returns those of some blocks of this process's, of which it does not know
	// names, for which none stands elsewhere either, as far as the last AdoptParts of the Catalogue
	// could see: they may be evicted. An Entry before that is Wanted. Errors:
	// ErrUnavailable, with ErrNotNow while that is not known.
	Nobodys(ids []block.ID) ([]block.ID, error)

	// LinkAt is Link for a block that may lie in a file that is spilled, at that place.
	// Errors: ErrNotFound also when that is another's file, whether or not this process has the block too: then
	// it is not a copy of what lies here.
	LinkAt(at Segment, id block.ID, n block.Name) error

	// OthersUsage returns how many bytes live runs of other jobs take of what was
	// adopted by Recover and Adopt, and how many runs they are.
	OthersUsage() (bytes int64, runs int)

	// Catalogue returns the index of what other parts hold, nil for none.
	Catalogue() Catalogue
}

// Segment is where a block lies in the files of a Segmented tier. It is made to
// be passed to other ranks, and stays true for as long as the file exists.
type Segment struct {
	Path      string // of the file, relative to the directory that all ranks share
	Offset    int64  // where the payload starts in the file, in bytes
	Stored    int64  // bytes of the payload as stored
	StoredCRC uint32 // CRC32C of them
	Codec     uint8  // how they are encoded; 0: not at all
}

// Part is what one run of one rank wrote to a Shared tier.
type Part struct {
	Rank        uint32
	Incarnation uint64 // larger than those of the rank's earlier runs
}

// SpilledFile is a file of this process of which only the Catalogue knows what it
// holds.
type SpilledFile struct {
	Part   Part
	Number uint64 // of the file in its part
	Path   string // in the shared directory, as of Segment
	Bytes  int64  // that it takes
	Blocks int    // in it
	Names  int    // in it that stand for something, about
	Wasted bool   // reloading it, so that it is merged, is worth it
}

// Read is one block of a ReadBatch: that of Pin, or, of a Segmented tier and if
// Pin is nil, block Info at the place At.
type Read struct {
	Pin  Pin // of the tier that reads
	At   Segment
	Info block.Info
	Dst  []byte // len == Pin.Info().Size, or Info.Size

	// Over allows to write also to what lies between Dst's length and its
	// capacity: blocks that lie apart by no more than that are read as one run.
	Over bool

	// Done, when not nil, is called once with the block's outcome, as soon as
	// there is one: blocks that came do not wait for those that hang. It may
	// be called from any goroutine, and for several blocks at once, but not
	// after ReadBatch has returned. It must return soon.
	Done func(error)
}
