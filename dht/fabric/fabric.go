package fabric

import (
	"context"
	"errors"
	"fmt"
)

// Rank is a rank's number in its job, from 0. It is the MPI world rank where
// there is MPI.
type Rank uint32

// String is the rank as it is written in messages: "rank 3".
func (r Rank) String() string { return fmt.Sprintf("rank %d", uint32(r)) }

// MaxMessage bounds a call's request and its answer, in bytes. Callers split
// what is longer.
const MaxMessage = 1 << 20

// MaxRead bounds one Read, in bytes: a block.
const MaxRead = 4 << 30

// Errors of a fabric, wrapped with the peer and what was asked. Test with
// errors.Is. Besides these, an operation returns its context's error when the
// deadline passed first; whether the peer acted on it is then unknown.
var (
	ErrStale       = errors.New("fabric: the block is no longer there")          // ask where it is now, then it is a miss
	ErrUnreachable = errors.New("fabric: the peer cannot be reached")            // ask another rank; a miss
	ErrRefused     = errors.New("fabric: the peer refuses us")                   // permanent: another job, secret or version
	ErrTooLarge    = errors.New("fabric: message is larger than a fabric moves") // caller's mistake
	ErrClosed      = errors.New("fabric: closed")                                // permanent
)

// RemoteError is what a peer's Handler answered instead of a result.
type RemoteError struct {
	Peer Rank
	Text string
}

// Error names the peer.
func (e *RemoteError) Error() string { return fmt.Sprintf("%v: %s", e.Peer, e.Text) }

// Source is a run of bytes in a region of some rank, as of one generation: all
// of a block, or a part of it.
type Source struct {
	Region     uint32
	Offset     int64 // bytes from the start of the region
	Length     int64 // bytes
	Generation uint64
}

// State is what membership thinks of a peer.
type State uint8

// What membership thinks, from good to bad.
const (
	Alive   State = iota
	Suspect       // unanswered calls: no one-sided operation is started on it
	Gone          // dead or left: calls fail at once with ErrUnreachable
)

// String is "alive", "suspect" or "gone".
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Suspect:
		return "suspect"
	}
	return "gone"
}

// Peer is another rank, as the fabric's owner describes it.
type Peer struct {
	Rank        Rank
	Incarnation uint64 // a larger one replaces what was known of smaller ones
	Addr        string // where its fabric listens, as Fabric.Addr gave it; "" where ranks need none
	State       State
}

// Fabric connects this rank with the others. All methods are safe for
// concurrent use. A rank can call and read itself.
type Fabric interface {
	// Name is the fabric's word in statistics: "mpi", "tcp", "sim".
	Name() string

	// Self is this rank.
	Self() Rank

	// Addr is where this rank's fabric is reached: other ranks learn it from
	// Peer.Addr. It is "" where ranks need none.
	Addr() string

	// SetPeer adds a peer, or changes its state. It does
	// not block. Operations under way to a peer that is Gone, or whose
	// incarnation was replaced, end with ErrUnreachable.
	SetPeer(Peer)

	// Serve lets h answer the other ranks. It is called once, before which
	// their requests wait or fail; it returns at once.
	Serve(h Handler) error

	// Call sends req to a peer and returns its answer, which belongs to the
	// caller. req may be used again when Call returns. ctx must have a
	// deadline. Errors: ErrUnreachable, ErrRefused, ErrTooLarge, ErrClosed,
	// *RemoteError, ctx's.
	Call(ctx context.Context, to Rank, req []byte) ([]byte, error)

	// Read copies src of a peer into dst, whose length must be src.Length. dst
	// must be memory that Go's collector does not move or free: an arena or
	// other mapped memory. When it returns nil, dst holds what the region held
	// while src.Generation was there; the caller checks the block's checksum
	// all the same. After an error dst's content is undefined, and if the error
	// has a method Done() <-chan struct{} (see Lingering), dst must be left
	// alone until that channel is closed. ctx must have a deadline.
	// Errors: ErrStale, ErrUnreachable, ErrRefused, ErrTooLarge, ErrClosed,
	// ctx's.
	Read(ctx context.Context, from Rank, src Source, dst []byte) error

	// Close ends all operations with ErrClosed and waits, up to a few seconds,
	// until the handler is not called any more and all holds are released.
	Close() error
}

// Handler answers other ranks. Its methods are called concurrently and must
// return soon: the caller's deadline is in ctx.
type Handler interface {
	// Answer answers one call. req is only valid until Answer returns. The
	// answer passes to the fabric. An error travels to the caller as a
	// *RemoteError.
	Answer(ctx context.Context, from Rank, req []byte) ([]byte, error)

	// Hold pins the bytes of src in this rank's regions. Errors: one that
	// matches ErrStale when they are not there, or not any more.
	Hold(src Source) (Hold, error)
}

// QuickHandler is implemented by Handlers some of whose answers take no longer than it
// takes to have another goroutine give them.
type QuickHandler interface {
	Handler

	// Quick reports whether Answer answers req without waiting for anything but
	// mutexes. Its ctx ends only with the connection then.
	Quick(req []byte) bool
}

// Hold is a pin of bytes that are being sent.
type Hold interface {
	Bytes() []byte // len == Source.Length; dead after Release
	Release()      // exactly once
}

// Lingering is implemented by errors of Reads whose dst may still be written
// to after they returned.
type Lingering interface {
	error
	Done() <-chan struct{} // closed when dst is the caller's again
}
