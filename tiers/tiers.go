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
	ErrNotNow      = errors.New("it takes a wait")                                          // ask for what waits
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
	Capacity    int64  // bytes that can hold blocks; 0 means unbounded
	Missing     int64  // bytes that Capacity is below what was asked for, while the machine has no room for them
	Lacks       string // why Missing is not 0, and what to do; "" when it is
	Used        int64  // bytes taken, padding included
	OtherOwners int64  `json:"Foreign"` // of Used: what other processes decide about
	Payload     int64  // bytes of blocks, padding excluded
	Blocks      int    // number of blocks
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
	Info       block.Info
	Names      []block.Name
	Dropped    []block.Name // names withdrawn at their Seq; only Namespace, Key and Seq are set
	OtherOwner bool         // it lies where another process decides what stays
	Wanted     bool         // names that lie elsewhere, in files that are not this process's, stand for it, or may: see Files.Nobodys
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
	// Unlink withdraws all that are not younger than its Seq. So the caller moves a
	// name by linking it to the new block first and then unlinking it from
	// the former one, with a Seq below the new record's, and not below the old
	// one's. Link replaces an older record with the same block. Unlink of
	// what is not recorded does nothing. A tier that does not outlive its
	// process does nothing in both. Errors: ErrNotFound (no such block, Link
	// only), ErrFull, ErrUnavailable.
	Link(id block.ID, n block.Name) error
	Unlink(id block.ID, n block.Name) error

	// SetLayout records how the blocks of a namespace are made, as of seq, as durably
	// as Link does a name; it stays for as long as a name of the namespace. The larger
	// seq wins. A tier that does not outlive its process may do nothing. Errors: block.ErrBadLayout, ErrFull, ErrUnavailable.
	SetLayout(ns string, seq uint64, l block.Layout) error

	// Layout returns the newest record of SetLayout, of what earlier incarnations left
	// too, and in files of others that were read; seq is 0 where there is none. It does
	// not wait.
	Layout(ns string) (seq uint64, l block.Layout)

	// Recover calls fn once for each block that an earlier incarnation left
	// intact, in no particular order, then returns. It is called at most once
	// and before any other method that takes an id. An error from fn ends it
	// and is returned.
	Recover(fn func(Entry) error) error

	// Usage reports the tier's space. It is cheap.
	Usage() Usage

	// Stats describes the tier for people. It may wait for a moment.
	Stats() Stats

	// Close waits for pins to be released, up to a few seconds, and gives
	// back what the tier holds. What outlives the process stays usable by the
	// next incarnation.
	Close() error
}

// Pin is a hold on one block's bytes.
type Pin interface {
	Payload

	// Info returns the block's facts.
	Info() block.Info

	// ReadInto copies the block into dst, memory that the process addresses
	// (len(dst) == Info().Size), and verifies its CRC32C. Where that may take long
	// it ends with ctx; an error that has a method Done() <-chan struct{} comes
	// while dst is still written to, until that channel is closed. Errors: ErrCorrupt
	// (the tier has withdrawn the block), ErrUnavailable.
	ReadInto(ctx context.Context, dst []byte) error

	// ZeroCopy reports whether sockets and pipes may refer to Bytes even after Release.
	// If so, the tier never writes to that memory again: once the block is gone,
	// its place gets other memory before it is reused. That holds for later
	// processes too.
	ZeroCopy() bool

	// Release gives the hold back. Calls after the first do nothing.
	Release()
}
