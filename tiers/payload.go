package tiers

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/internal/block"
)

// Payload is the memory of one block: a slot's, or a pin's. It may be a device's,
// which the process reaches by way of these methods only.
type Payload interface {
	// Bytes returns the block in place, or nil when the process can not address
	// it: on a device, or in a file. A pin's is read-only. It dies with the pin
	// or slot.
	Bytes() []byte

	// Offset is where Bytes starts in a memory tier's Region, in bytes, and in its
	// File if it has one; -1 when there is no Region.
	Offset() int64

	// CRC returns the CRC32C of the bytes behind crc followed by the block's from
	// from to to. Errors: ErrUnavailable, of files too, which verify when they
	// are read.
	CRC(crc uint32, from, to int64) (uint32, error)

	// Hash writes the block's bytes from from to to to h. Errors: as CRC.
	Hash(h *block.Hasher, from, to int64) error
}

// Host is a Payload in memory that the process addresses, and how a Slot there is
// filled. Embed it.
type Host []byte

// Bytes implements Payload.
func (h Host) Bytes() []byte { return h }

// CRC implements Payload.
func (h Host) CRC(crc uint32, from, to int64) (uint32, error) {
	return block.ExtendCRC(crc, h[from:to]), nil
}

// Hash implements Payload.
func (h Host) Hash(to *block.Hasher, from, end int64) error {
	to.Write(h[from:end])
	return nil
}

// Write implements Slot.
func (h Host) Write(crc uint32, at int64, p []byte) (uint32, error) {
	return block.CopyCRC(crc, h[at:at+int64(len(p))], p), nil
}

// CopyFrom implements Slot.
func (h Host) CopyFrom(ctx context.Context, src Pin) error { return src.ReadInto(ctx, h) }

// Hidden is of a Payload that the process can not address. Embed it.
type Hidden struct{}

// Bytes returns nil.
func (Hidden) Bytes() []byte { return nil }

// Offset returns -1.
func (Hidden) Offset() int64 { return -1 }

// ZeroCopy implements Pin.
func (Hidden) ZeroCopy() bool { return false }

// InFile is the Payload of a pin whose block lies in a file. Embed it.
type InFile struct{ Hidden }

// CRC returns ErrUnavailable.
func (InFile) CRC(uint32, int64, int64) (uint32, error) { return 0, errInFile }

// Hash returns ErrUnavailable.
func (InFile) Hash(*block.Hasher, int64, int64) error { return errInFile }

var errInFile = fmt.Errorf("a block in a file is verified when it is read: %w", ErrUnavailable)

// PutSlots is Put of a Memory tier: each item by a slot of its own.
func PutSlots(ctx context.Context, m Memory, items []Item) (err error) {
	for i, it := range items {
		if err = ctx.Err(); err == nil {
			err = putSlot(m, it)
		}
		if err != nil {
			for _, done := range items[:i] {
				err = errors.Join(err, m.Evict(done.Info.ID))
			}
			return err
		}
	}
	return nil
}

func putSlot(m Memory, it Item) error {
	if _, err := m.Place(it.Info.ID); err == nil {
		return fmt.Errorf("%s: block %v: %w", m.Name(), it.Info.ID, ErrExists)
	}
	s, err := m.Reserve(it.Info.Size)
	if err != nil {
		return err
	}
	if _, err := s.Write(0, 0, it.Data); err != nil {
		s.Abort()
		return err
	}
	return s.Commit(it.Info, it.Names)
}
