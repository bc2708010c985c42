package tiers

import (
	"context"

	"cascadekv/internal/block"
)

// Memory is a tier in memory, of the host or a device, or on a disk that is used like
// one: blocks are filled and read in place, by its slots and pins. Only slots are filled, and
// pins read, at the speed of a disk: all other methods may be called by who holds a mutex.
type Memory interface {
	Tier

	// Reserve returns room for size bytes. Errors: ErrFull, ErrTooLarge, and
	// ErrShort where no eviction helps until the tier has grown.
	Reserve(size int64) (Slot, error)

	// ReserveNow is Reserve of a small block, which waits for nothing: ErrFull where
	// eviction makes room, ErrNotNow for any other reason.
	ReserveNow(size int64) (Slot, error)

	// Rename completes a provisional id. Errors: ErrNotFound, ErrExists (a
	// block with the id new is stored already; nothing changed).
	Rename(old, new block.ID) error

	// Place returns where a block lies at this moment. Errors: ErrNotFound.
	Place(id block.ID) (Place, error)

	// PinPlace holds the block of which length bytes lie where at says, if they
	// still do; at may point into the block, the pin is of the whole block.
	// Only misses cost more than a look-up. Errors: ErrNotFound (the
	// block is gone, was moved, or ends before).
	PinPlace(at Place, length int64) (Pin, error)

	// Region is the memory that Place.Offset counts from: all of the tier's,
	// for exposing it to other processes and network adapters, not for
	// writing. It dies with Close. Nil when the process can not address it.
	Region() []byte

	// Record returns where a block and its record lie at this moment: the record
	// is there, with its number, for as long as the block's bytes are its own.
	// docs/format.md §2.4 has its bytes. Errors: ErrNotFound.
	Record(id block.ID) (Record, error)

	// Moves counts the times that blocks were moved: what Record returned before
	// may be out of date, and their records there are gone.
	Moves() uint64

	// Watch has the tier call held, which reports whether somebody outside reads
	// the block at an offset of File, after the block's record is gone and before
	// its memory is reused, and before blocks are moved. held must not call the
	// tier. What is held stays where it is; once it is no block any more its memory
	// is free only after Settle finds that it is held no longer. Nil ends that.
	Watch(held func(offset int64) bool)

	// Settle frees what is no block and is held no longer, and returns how many
	// bytes still are held.
	Settle() (held int64)

	// HeldRanges returns what is held now, blocks or not, for the process that takes
	// the tier over.
	HeldRanges() []HeldRange

	// KeptRanges returns what keeps the ranges that the tier was opened with, in
	// their order. It gives them out once; the caller ends each of them.
	KeptRanges() []KeptRange

	// File returns the descriptor behind the tier's memory for sendfile and
	// for handing to other processes, or -1 when there is none.
	File() int
}

// Place is where a block lies in a tier's Region, as of one stay of it there.
type Place struct {
	Offset int64 // bytes from the start of the region, and of the tier's File; -1 without a region

	// Generation is one stay of a block in the tier, never 0: no other block,
	// and no other stay of the same, gets it, not after a restart either.
	// Rename keeps it. When the tier moves the block, Offset changes and
	// Generation does not.
	Generation uint64
}

// Record is where a block and its record lie in a tier's File.
type Record struct {
	Offset int64 // of the block, in bytes
	Record int64 // of the record, likewise
	UID    uint64
}

// Slot is memory for a block that is still arriving. What the capacity of its
// Bytes says more than their length is the slot's as well, and nobody reads it.
type Slot interface {
	Payload

	// Write copies p, which the process addresses, to the bytes from at on, and
	// returns the CRC32C of the bytes behind crc followed by p. Errors:
	// ErrUnavailable.
	Write(crc uint32, at int64, p []byte) (uint32, error)

	// CopyFrom fills the slot with the block of a pin, of just its size,
	// verified: the one way of a block from one level to another. The slot's tier
	// decides how: it may know both sides. After an error with a method Done, as
	// ReadInto has them, neither the slot nor the pin may be given back before that
	// channel is closed. Errors: those of ReadInto; after
	// ErrCorrupt the caller withdraws the block of the pin, if its tier did not.
	CopyFrom(ctx context.Context, src Pin) error

	// Commit publishes the block with its names. info.Size must be the size
	// reserved. On error the slot is gone. Errors: ErrExists, ErrFull (no
	// room for the names).
	Commit(info block.Info, names []block.Name) error

	// Abort gives the room back. After Commit or Abort, calls do nothing.
	Abort()
}

// HeldRange is a range of a memory tier's File that somebody outside still uses
// when a process takes the tier over from an earlier one: its bytes must neither
// move nor be given to anybody else until that is over.
type HeldRange struct {
	Offset, Size int64  // as Place has it
	CRC          uint32 // of a block that is read; 0 for a slot
	Slot         bool   // it is filled, otherwise it is read
}

// KeptRange keeps one HeldRange: with its Pin one that is read, with its Slot one
// that is filled. Both are nil when the range can not be kept, because something
// else lies there.
type KeptRange struct {
	Pin  Pin
	Slot Slot
}
