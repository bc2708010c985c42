package tiers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

// Plain makes Files of a Tier that no other rank reads and that neither buffers,
// encodes, merges nor shares: each method beyond Tier's has the answer of such a
// tier. Embed it and override what the tier does better.
type Plain struct{ Tier }

var _ Files = Plain{}

// Sync does nothing: the tier's records are durable at once, or never.
func (Plain) Sync(context.Context) error { return nil }

// Segment returns ErrNotFound.
func (p Plain) Segment(id block.ID) (Segment, error) {
	return Segment{}, fmt.Errorf("%s: %w: no other rank reads %v", p.Name(), ErrNotFound, id)
}

// ReadSegment returns ErrUnavailable.
func (p Plain) ReadSegment(context.Context, Segment, block.Info, []byte) error {
	return fmt.Errorf("%s: %w: it reads no files of other ranks", p.Name(), ErrUnavailable)
}

// StoredSize returns info.Size.
func (Plain) StoredSize(info block.Info) int64 { return info.Size }

// Merge does nothing.
func (Plain) Merge(context.Context, int64, func([]block.ID)) (Merged, error) { return Merged{}, nil }

// Sparsest returns nil.
func (Plain) Sparsest(int) [][]block.ID { return nil }

// Missing returns nil.
func (Plain) Missing(context.Context) ([]block.ID, error) { return nil, nil }

// Gone returns nil.
func (Plain) Gone(context.Context, ...string) ([]string, error) { return nil, nil }

// Parts returns nil.
func (Plain) Parts(context.Context) ([]Part, error) { return nil, nil }

// Adopt returns ErrUnavailable.
func (p Plain) Adopt(context.Context, Part, func(Entry) error) error {
	return fmt.Errorf("%s: %w: it has no parts of other ranks", p.Name(), ErrUnavailable)
}

// AdoptOrphan returns false.
func (Plain) AdoptOrphan(context.Context, Part, func(Entry) error) (bool, error) { return false, nil }

// Nobodys returns nil: no Entry is Wanted.
func (Plain) Nobodys([]block.ID) ([]block.ID, error) { return nil, nil }

// Spill returns false.
func (Plain) Spill(context.Context, func([]block.ID) bool) (bool, error) { return false, nil }

// Spilled returns nil.
func (Plain) Spilled() []SpilledFile { return nil }

// Reload returns ErrNotFound.
func (p Plain) Reload(context.Context, SpilledFile, func(Entry) error) error {
	return fmt.Errorf("%s: %w: it spills nothing", p.Name(), ErrNotFound)
}

// LinkAt returns ErrNotFound.
func (p Plain) LinkAt(_ Segment, id block.ID, _ block.Name) error {
	return fmt.Errorf("%s: %w: no other rank reads %v", p.Name(), ErrNotFound, id)
}

// OthersUsage returns zeros.
func (Plain) OthersUsage() (bytes int64, runs int) { return 0, 0 }

// Catalogue returns nil.
func (Plain) Catalogue() Catalogue { return nil }

// Private has the answers of a Memory tier that no other process maps and that
// does not outlive its own: it has no File and no records, and so nothing in it
// is held from outside. Embed it.
type Private struct{}

// File returns -1.
func (Private) File() int { return -1 }

// ReserveNow returns ErrNotNow.
func (Private) ReserveNow(int64) (Slot, error) { return nil, ErrNotNow }

// Region returns nil.
func (Private) Region() []byte { return nil }

// Stats returns nothing.
func (Private) Stats() Stats { return Stats{} }

// Recover does nothing.
func (Private) Recover(func(Entry) error) error { return nil }

// Link does nothing.
func (Private) Link(block.ID, block.Name) error { return nil }

// Unlink does nothing.
func (Private) Unlink(block.ID, block.Name) error { return nil }

// SetLayout does nothing.
func (Private) SetLayout(string, uint64, block.Layout) error { return nil }

// Layout returns 0.
func (Private) Layout(string) (uint64, block.Layout) { return 0, block.Layout{} }

// Record returns ErrNotFound.
func (Private) Record(id block.ID) (Record, error) {
	return Record{}, fmt.Errorf("%w: %v has no record outside the process", ErrNotFound, id)
}

// Moves returns 0.
func (Private) Moves() uint64 { return 0 }

// Watch does nothing.
func (Private) Watch(func(offset int64) bool) {}

// Settle returns 0.
func (Private) Settle() int64 { return 0 }

// HeldRanges returns nil.
func (Private) HeldRanges() []HeldRange { return nil }

// KeptRanges returns nil.
func (Private) KeptRanges() []KeptRange { return nil }

// concurrentReads bounds the blocks that ReadBatch of Plain reads at once.
const concurrentReads = 16

// ReadBatch reads each block with its pin, a few at once.
func (p Plain) ReadBatch(ctx context.Context, reads []Read) []error {
	errs := make([]error, len(reads))
	var next atomic.Int64
	work := func() {
		defer fault.Guard()()
		for i := next.Add(1) - 1; i < int64(len(reads)); i = next.Add(1) - 1 {
			errs[i] = p.readOne(ctx, reads[i])
		}
	}
	var others sync.WaitGroup
	for range min(len(reads), concurrentReads) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	return errs
}

func (p Plain) readOne(ctx context.Context, r Read) (err error) {
	switch {
	case r.Pin == nil:
		err = p.ReadSegment(ctx, r.At, r.Info, r.Dst)
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: read of %v was not begun: %w", ErrUnavailable, r.Pin.Info().ID, ctx.Err())
	default:
		err = r.Pin.ReadInto(ctx, r.Dst)
	}
	if r.Done != nil {
		r.Done(err)
	}
	return err
}
