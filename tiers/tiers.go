package tiers

import (
	"context"
	"errors"

	"cascadekv/internal/block"
)

// Errors a tier returns, always wrapped with the tier's name and the block.
// Test with errors.Is.
var (
	ErrNotFound    = errors.New("block not in this tier")                                   // a miss
	ErrFull        = errors.New("no room: evict and try again")                             // retry after Evict
	ErrShort       = errors.New("less memory is ready than the block takes")                // retry after Usage.Missing shrank
	ErrTooLarge    = errors.New("block can never fit this tier")                            // permanent
	ErrExists      = errors.New("block already in this tier")                               // nothing to do
	ErrPinned      = errors.New("block is pinned: retry after its pins are gone")           // retry later
	ErrCorrupt     = errors.New("stored bytes fail their checksum: the block is lost here") // a miss
	ErrUnavailable = errors.New("tier cannot be used now")                                  // reads are misses, writes go elsewhere
	ErrClosed      = errors.New("tier is closed")                                           // permanent
)

// Usage is a tier's space at one moment.
type Usage struct {
	Capacity int64  // bytes that can hold blocks; 0 means unbounded
	Missing  int64  // bytes that Capacity is below what was asked for, while the machine has no room for them
	Lacks    string // why Missing is not 0, and what to do; "" when it is
	Used     int64  // bytes taken, padding included
	Foreign  int64  // of Used: what other processes decide about
	Payload  int64  // bytes of blocks, padding excluded
	Blocks   int    // number of blocks
}

// Item is one block to store together with the names that point to it.
type Item struct {
	Info  block.Info
	Names []block.Name
	Data  []byte // len == Info.Size; only read, and only until Put returns
}

// Entry is what Recover hands over: a block with the names found beside it, or
// names alone (Info.ID zero) when Dropped lists withdrawn names.
type Entry struct {
	Info    block.Info
	Names   []block.Name
	Dropped []block.Name // names withdrawn at their Seq; only Namespace, Key and Seq are set
	Foreign bool         // it lies where another process decides what stays
}

// Tier keeps blocks by id. All methods are safe for concurrent use, and after
// Close return ErrClosed. Only Put may take long; it obeys its context.
type Tier interface {
	// Name is the tier's word in statistics and errors: "shm", "lustre".
	Name() string

	// Put stores copies of all items, or none of them when it fails. When it
	// returns nil the blocks are readable and as durable as the tier can make
	// them. Errors: ErrFull, ErrTooLarge, ErrExists, ErrUnavailable.
	Put(ctx context.Context, items ...Item) error

	// Pin holds a block for reading. The caller must Release the pin exactly
	// once. Errors: ErrNotFound.
	Pin(id block.ID) (Pin, error)

	// Evict forgets a block. Errors: ErrNotFound, ErrPinned.
	Evict(id block.ID) error

	// Link records a name with a stored block and Unlink withdraws it from
	// that block, so that both outlive a crash as far as the tier itself
	// does. Of several records of a name the highest Seq is the truth, and an
	// Unlink withdraws all that are older than its Seq. So the caller moves a
	// name by linking it to the new block first and then unlinking it from
	// the former one, with a Seq above the old record's and below the new
	// one's. Link replaces an older record with the same block. Unlink of
	// what is not recorded does nothing. A tier that does not outlive its
	// process does nothing in both. Errors: ErrNotFound (no such block, Link
	// only), ErrFull, ErrUnavailable.
	Link(id block.ID, n block.Name) error
	Unlink(id block.ID, n block.Name) error

	// Recover calls fn once for each block that an earlier incarnation left
	// intact, in no particular order, then returns. It is called at most once
	// and before any other method that takes an id. An error from fn ends it
	// and is returned.
	Recover(fn func(Entry) error) error

	// Usage reports the tier's space.
	Usage() Usage

	// Close waits for pins to be released, up to a few seconds, and gives
	// back what the tier holds. What outlives the process stays usable by the
	// next incarnation.
	Close() error
}

// Syncer is implemented by tiers whose Link and Unlink only keep the record in
// mind until the next Put.
type Syncer interface {
	// Sync makes all records so far durable. It may take long and obeys its
	// context. Errors: ErrUnavailable.
	Sync(ctx context.Context) error
}

// Segment is where a block lies in the files of a Segmented tier. It is made to
// be told to other ranks, and stays true for as long as the file exists.
type Segment struct {
	Path      string // of the file, relative to the directory that all ranks share
	Offset    int64  // where the payload starts in the file, in bytes
	Stored    int64  // bytes of the payload as stored
	StoredCRC uint32 // CRC32C of them
	Codec     uint8  // how they are encoded; 0: not at all
}

// Segmented is implemented by tiers whose files any rank can read.
type Segmented interface {
	// Segment returns where a stored block lies. Errors: ErrNotFound.
	Segment(id block.ID) (Segment, error)

	// ReadSegment reads a block that any rank, also one of an earlier job,
	// stored at the place at, and that need not be known here, into dst
	// (len(dst) == info.Size), verified: its CRC32C is right. Nothing that at
	// says can lead out of the shared directory. It obeys its context, but may
	// leave dst in use as the tier's Pin.ReadInto does. Errors: ErrNotFound (no
	// such file, or no more: a miss), ErrCorrupt (another block, a torn one,
	// damage), ErrUnavailable.
	ReadSegment(ctx context.Context, at Segment, info block.Info, dst []byte) error
}

// Part is what one run of one rank wrote to a Shared tier.
type Part struct {
	Rank        uint32
	Incarnation uint64 // larger than those of the rank's earlier runs
}

// Shared is implemented by tiers that several ranks and jobs fill, each its
// part, and of which Recover may leave out parts of other ranks.
type Shared interface {
	// Parts lists the parts, this process's own among them once it has one.
	// Errors: ErrUnavailable.
	Parts(ctx context.Context) ([]Part, error)

	// Adopt takes in what a part holds, but for what was taken in before, and
	// calls fn as Recover does, at any time. What its rank still writes there
	// is taken as it is now. A part of this rank's own number may belong to a
	// process that lives; once that has ended Adopt makes it this process's
	// own, and fn is told of its blocks again, not Foreign any more. Errors:
	// ErrUnavailable, those of fn.
	Adopt(ctx context.Context, p Part, fn func(Entry) error) error
}

// Heir is implemented by Shared tiers in which what another rank number's run
// left may become this process's own, so that it decides what stays of it.
type Heir interface {
	// Inherit is Adopt for a part of another rank number, whose blocks are then
	// not Foreign. It is false, and fn is told of nothing, while somebody owns
	// the part. Errors: those of Adopt.
	Inherit(ctx context.Context, p Part, fn func(Entry) error) (bool, error)

	// Beside tells what live runs of other jobs take, in bytes, of what was
	// taken in by Recover and Adopt, and how many they are.
	Beside() (bytes int64, runs int)
}

// Health is what keeps a tier from answering at one moment, and, since it was
// opened, what did.
type Health struct {
	Hanging int    `json:"hanging"`        // operations that were not answered for long
	Files   int    `json:"broken_files"`   // files that are left alone for a while
	Writes  bool   `json:"writes_broken"`  // new blocks are refused for a while
	Breaks  uint64 `json:"breaks_total"`   // times that something began to be left alone
	Refused uint64 `json:"refusals_total"` // operations that were not tried therefore

	ReadOnly bool       `json:"read_only"`      // new blocks are refused for want of space or quota
	Poisoned uint64     `json:"poisoned_total"` // files that were given up after a write that failed
	Reads    ReadErrors `json:"read_errors"`
}

// ReadErrors counts the reads of a tier that failed, by kind.
type ReadErrors struct {
	Corrupt    uint64 `json:"corrupt_total"`    // other bytes than were stored
	Gone       uint64 `json:"gone_total"`       // the file, or the block in it, is there no more
	Unanswered uint64 `json:"unanswered_total"` // not answered in time, or not tried because nothing was
	Failed     uint64 `json:"failed_total"`     // for which the file system had an error
}

// Healthy is implemented by tiers that may stop answering.
type Healthy interface{ Health() Health }

// Striping is how the newest file of a tier lies on the servers of a file system
// with stripes, in the words of lfs setstripe.
type Striping struct {
	Asked       string   `json:"asked"`
	Granted     string   `json:"granted"`               // empty: it could not be read
	Differences []string `json:"differences,omitempty"` // each with what usually lies behind it
	Error       string   `json:"error,omitempty"`       // why nothing could be set, or read
}

// AsAsked tells whether all that was asked for is in effect.
func (s Striping) AsAsked() bool { return len(s.Differences) == 0 && s.Error == "" }

// Striped is implemented by tiers whose files may have stripes.
type Striped interface {
	// Striping is nil before the first file, and where nothing has stripes.
	Striping() *Striping
}

// Encoding is implemented by tiers that may keep a block in fewer bytes than it
// has.
type Encoding interface {
	// Stored returns the bytes that a block takes as it is stored, padding
	// excluded. Errors: ErrNotFound.
	Stored(id block.ID) (int64, error)

	// Encoded tells what encoding has come to.
	Encoded() Encoded
}

// Encoded is what encoding has come to in a tier.
type Encoded struct {
	Stored int64   `json:"stored"` // bytes of Usage.Payload as they are stored, padding excluded
	Codecs []Codec `json:"codecs"` // counted since the tier was opened
}

// Codec is one way to store a block, or, under the name "none", to leave it as
// it is.
type Codec struct {
	Name     string `json:"name"`
	Blocks   uint64 `json:"blocks"`    // put
	BytesIn  uint64 `json:"bytes_in"`  // of those blocks
	BytesOut uint64 `json:"bytes_out"` // as stored
	Decoded  uint64 `json:"decoded"`   // blocks read
}

// Merging is implemented by tiers in which space that is free is not yet room.
type Merging interface {
	// Merge rewrites some of what the tier holds so that it takes less space,
	// and tells what it did: after one that rewrote segments another call may
	// be worth it. With a budget, in bytes, it does so as far as needed to stay
	// within; 0 is none. A tier that is full does more, with no more room than
	// there is. moved is told of blocks whose Segment is another now;
	// it must return soon. It obeys its context, and gives way to requests. An
	// error comes with what was done before. Errors: ErrUnavailable, ErrFull.
	Merge(ctx context.Context, budget int64, moved func([]block.ID)) (Merged, error)

	// Merged tells what all merges did since the tier was opened.
	Merged() Merged
}

// Merged is what a Merge did, or several together. Files count in bytes.
type Merged struct {
	Merges   uint64 `json:"merges"`        // that did something
	Segments uint64 `json:"segments"`      // that were rewritten, and are unlinked then
	Blocks   uint64 `json:"blocks"`        // moved
	Bytes    uint64 `json:"bytes"`         // of these blocks
	Written  uint64 `json:"written_bytes"` // of the segments that were made
	Removed  uint64 `json:"removed_bytes"` // of the segments that were rewritten
}

// Freed is by how many bytes the tier's files are less; negative when more was
// written, as by a merge that failed before it had emptied a segment.
func (m Merged) Freed() int64 { return int64(m.Removed) - int64(m.Written) }

// Sparse is implemented by tiers that can give back the space of what they do not
// hold any more in pieces only.
type Sparse interface {
	// Sparsest returns what the emptiest piece that is worth it still holds, of most
	// bytes together; nil without such a piece. Evicting all of it makes room.
	Sparsest(most int64) []block.ID
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

// BatchReader is implemented by tiers that read many blocks together faster
// than one by one.
type BatchReader interface {
	// ReadBatch copies each block into its Dst and verifies it, as Pin.ReadInto
	// or ReadSegment does, and returns one error for each read, in order: nil, or
	// what that would have returned. One block's error is not another's. It
	// obeys its context; a block that came in time is good all the same.
	ReadBatch(ctx context.Context, reads []Read) []error
}

// Removable is implemented by tiers whose files somebody else may remove.
type Removable interface {
	// Missing looks whether what this process put is still there, and returns
	// the blocks that are not: the tier does not have them any more. It obeys its
	// context. Errors: ErrUnavailable, when that is not known.
	Missing(ctx context.Context) ([]block.ID, error)
}

// Pin is a hold on one block's bytes.
type Pin interface {
	// Info returns the block's facts.
	Info() block.Info

	// Bytes returns the block in place, or nil when the tier has no memory of
	// its own. The slice is read-only and dies with Release.
	Bytes() []byte

	// ReadInto copies the block into dst (len(dst) == Info().Size) and
	// verifies its CRC32C. Errors: ErrCorrupt (the tier has withdrawn the
	// block), ErrUnavailable.
	ReadInto(ctx context.Context, dst []byte) error

	// Release gives the hold back. Calls after the first do nothing.
	Release()
}

// Memory is a tier whose bytes are addressable: blocks are filled and read in
// place.
type Memory interface {
	Tier

	// Reserve returns room for size bytes. Errors: ErrFull, ErrTooLarge, and
	// ErrShort where no eviction helps until the tier has grown.
	Reserve(size int64) (Slot, error)

	// Rename completes a provisional id. Errors: ErrNotFound, ErrExists (a
	// block with the id new is stored already; nothing changed).
	Rename(old, new block.ID) error

	// Place returns where a block lies at this moment. Errors: ErrNotFound.
	Place(id block.ID) (Place, error)

	// PinPlace holds the block of which length bytes lie where at says, if they
	// still do; at may point into the block, the pin is of the whole block, and
	// Located. Only misses cost more than a look-up. Errors: ErrNotFound (the
	// block is gone, was moved, or ends before).
	PinPlace(at Place, length int64) (Pin, error)

	// Region is the memory that Place.Offset counts from: all of the tier's,
	// for exposing it to other processes and network adapters, not for
	// writing. It dies with Close.
	Region() []byte

	// File returns the descriptor behind the tier's memory for sendfile and
	// for handing to other processes, or -1 when there is none.
	File() int
}

// Place is where a block lies in a tier's Region, as of one stay of it there.
type Place struct {
	Offset int64 // bytes from the start of the region, and of the tier's File

	// Generation is one stay of a block in the tier, never 0: no other block,
	// and no other stay of the same, gets it, not after a restart either.
	// Rename keeps it. When the tier moves the block, Offset changes and
	// Generation does not.
	Generation uint64
}

// Slot is memory for a block that is still arriving.
type Slot interface {
	// Bytes is the room, exactly the size reserved; the caller fills it. What its
	// capacity says more is the slot's as well, and nobody reads it.
	Bytes() []byte

	// Commit publishes the block with its names. info.Size must be the size
	// reserved. On error the slot is gone. Errors: ErrExists, ErrFull (no
	// room for the names).
	Commit(info block.Info, names []block.Name) error

	// Abort gives the room back. After Commit or Abort, calls do nothing.
	Abort()
}

// Recorded is implemented by memory tiers whose File has a record of each block
// that other processes can check: it is there, with its number, for as long as
// the block's bytes are its own. docs/format.md §2.4 has its bytes.
type Recorded interface {
	// Record returns where a block and its record lie at this moment.
	// Errors: ErrNotFound.
	Record(id block.ID) (Record, error)

	// Moves counts the times that blocks were moved: what Record returned
	// before may be out of date, and their records there are gone.
	Moves() uint64

	// Watch has the tier call held, which tells whether somebody outside reads
	// the block at an offset of File, after the block's record is gone and before
	// its room is somebody else's, and before blocks are moved. held must not call
	// the tier. What is held stays where it is; once it is no block any more it is
	// nobody's until Settle finds that it is held no longer. Nil ends that.
	Watch(held func(offset int64) bool)

	// Settle gives free what is no block and is held no longer, and returns how
	// many bytes still are.
	Settle() (held int64)

	// Claims returns what is held now, blocks or not, for who takes the tier over.
	Claims() []Claim
}

// Record is where a block and its record lie in a tier's File.
type Record struct {
	Offset int64 // of the block, in bytes
	Record int64 // of the record, likewise
	UID    uint64
}

// Located is implemented by pins of tiers that have a File.
type Located interface {
	// Offset is where Bytes starts in the tier's File, in bytes.
	Offset() int64
}

// Lender is implemented by pins of tiers whose memory can be handed to the kernel
// as it is, for sockets and pipes to refer to.
type Lender interface {
	// Lend tells whether Bytes may be referred to even after Release. If so, the
	// tier never writes to that memory again: once the block is gone, its room gets
	// other memory before anybody has it. That holds for later processes too.
	Lend() bool
}
