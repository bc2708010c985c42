package lustre

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// Busy says that the kernel still uses the caller's memory; see the package's
// documentation.
type Busy = segment.Busy

// Options configure the tier; see segment.Options.
type Options = segment.Options

// Tier is the cold tier. It implements tiers.Tier without a capacity of its
// own: the file system's, or a quota, is the limit, and reaching it is ErrFull.
type Tier struct {
	store     *segment.Store
	catalogue *catalogue.Catalogue // nil: none
	layout    segment.Layouter     // nil: none
}

var _ tiers.Files = (*Tier)(nil)

// Open makes the tier over o.Dir. It reads nothing yet: call Recover. Errors
// match tiers.ErrUnavailable.
func Open(o Options) (*Tier, error) {
	s, err := segment.Open(o)
	if err != nil {
		return nil, translate(err)
	}
	return &Tier{store: s, layout: o.Layout}, nil
}

// kinds pairs the store's errors with the tier's.
var kinds = []struct{ from, to error }{
	{segment.ErrNotFound, tiers.ErrNotFound},
	{segment.ErrExists, tiers.ErrExists},
	{segment.ErrPinned, tiers.ErrPinned},
	{segment.ErrTooLarge, tiers.ErrTooLarge},
	{segment.ErrCorrupt, tiers.ErrCorrupt},
	{segment.ErrFull, tiers.ErrFull}, // which are ErrUnavailable too
	{segment.ErrUnavailable, tiers.ErrUnavailable},
	{segment.ErrClosed, tiers.ErrClosed},
}

// translate makes err match the tier's error for what happened.
func translate(err error) error {
	for _, k := range kinds {
		if errors.Is(err, k.from) {
			return fmt.Errorf("lustre: %w: %w", k.to, err)
		}
	}
	return err
}

// Name implements tiers.Tier.
func (t *Tier) Name() string { return "lustre" }

// Put implements tiers.Tier. When its error is a *Busy, Data may be read until
// Busy.Done is closed.
func (t *Tier) Put(ctx context.Context, items ...tiers.Item) error {
	in := make([]segment.Item, len(items))
	for i, it := range items {
		in[i] = segment.Item(it)
	}
	return translate(t.store.Put(ctx, in...))
}

// Pin implements tiers.Tier.
func (t *Tier) Pin(id block.ID) (tiers.Pin, error) {
	ref, err := t.store.Acquire(id)
	if err != nil {
		return nil, translate(err)
	}
	return pin{ref}, nil
}

// Segment implements tiers.Files. Blocks of other ranks that Recover found
// count too.
func (t *Tier) Segment(id block.ID) (tiers.Segment, error) {
	p, err := t.store.Place(id)
	return tiers.Segment(p), translate(err)
}

// ReadSegment implements tiers.Files; see the package's documentation for
// when ctx ends first. A block whose owner has forgotten it is read all the
// same while its file exists.
func (t *Tier) ReadSegment(ctx context.Context, at tiers.Segment, info block.Info, dst []byte) error {
	return translate(t.store.ReadPlace(ctx, segment.Place(at), info, dst))
}

// ReadBatch implements tiers.Files; see the package's documentation for
// when ctx ends first.
func (t *Tier) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	errs := make([]error, len(reads))
	batch := make([]segment.Read, 0, len(reads))
	at := make([]int, 0, len(reads))
	for i, r := range reads {
		one := segment.Read{Place: segment.Place(r.At), Info: r.Info, Dst: r.Dst, Over: r.Over}
		if r.Pin != nil {
			p, ok := r.Pin.(pin)
			if !ok {
				errs[i] = fmt.Errorf("lustre: %w: a pin of another tier", segment.ErrBadItem)
				if r.Done != nil {
					r.Done(errs[i])
				}
				continue
			}
			one = segment.Read{Ref: p.Ref, Dst: r.Dst, Over: r.Over}
		}
		if r.Done != nil {
			one.Done = func(err error) { r.Done(translate(err)) }
		}
		batch, at = append(batch, one), append(at, i)
	}
	for i, err := range t.store.ReadBatch(ctx, batch) {
		errs[at[i]] = translate(err)
	}
	return errs
}

// Access tells how files are read and written.
func (t *Tier) Access() segment.Access { return t.store.Access() }

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error { return translate(t.store.Evict(id)) }

// Link implements tiers.Tier. The record is durable after the next Put, Sync
// or Close.
func (t *Tier) Link(id block.ID, n block.Name) error { return translate(t.store.Link(id, n)) }

// Unlink implements tiers.Tier. The record is durable after the next Put, Sync
// or Close.
func (t *Tier) Unlink(_ block.ID, n block.Name) error { return translate(t.store.Unlink(n)) }

// Recover implements tiers.Tier over the segments of all ranks and all earlier
// incarnations.
func (t *Tier) Recover(fn func(tiers.Entry) error) error {
	return translate(t.store.Recover(func(f segment.Found) error { return fn(tiers.Entry(f)) }))
}

// Skipped returns one error for each file or directory that Recover left out.
func (t *Tier) Skipped() []error { return t.store.Skipped() }

// Missing implements tiers.Files.
func (t *Tier) Missing(ctx context.Context) ([]block.ID, error) {
	lost, err := t.store.Missing(ctx)
	return lost, translate(err)
}

// Refused tells how much was not read because of whose it is.
func (t *Tier) Refused() segment.Refused { return t.store.Refused() }

// Late returns how many files and directories did not answer and were not read,
// and one of them. Their blocks are misses until their part is adopted.
func (t *Tier) Late() (n int, one string) { return t.store.Late() }

// Arrived sends when something that was late has answered: to adopt again may be
// worth it.
func (t *Tier) Arrived() <-chan struct{} { return t.store.Arrived() }

// Parts implements tiers.Files: a part is an incarnation.
func (t *Tier) Parts(ctx context.Context) ([]tiers.Part, error) {
	all, err := t.store.Incarnations(ctx)
	parts := make([]tiers.Part, len(all))
	for i, one := range all {
		parts[i] = tiers.Part{Rank: one.Rank, Incarnation: one.Number}
	}
	return parts, translate(err)
}

// Adopt implements tiers.Files.
func (t *Tier) Adopt(ctx context.Context, p tiers.Part, fn func(tiers.Entry) error) error {
	one := segment.Incarnation{Rank: p.Rank, Number: p.Incarnation}
	return translate(t.store.Adopt(ctx, one, func(f segment.Found) error { return fn(tiers.Entry(f)) }))
}

// Inherit implements tiers.Files.
func (t *Tier) Inherit(ctx context.Context, p tiers.Part, fn func(tiers.Entry) error) (bool, error) {
	one := segment.Incarnation{Rank: p.Rank, Number: p.Incarnation}
	done, err := t.store.Inherit(ctx, one, func(f segment.Found) error { return fn(tiers.Entry(f)) })
	return done, translate(err)
}

// OthersUsage implements tiers.Files.
func (t *Tier) OthersUsage() (bytes int64, runs int) {
	u := t.store.Usage()
	return u.Foreign, u.Others
}

// StoredSize implements tiers.Files.
func (t *Tier) StoredSize(info block.Info) int64 {
	n, err := t.store.Stored(info.ID)
	if err != nil {
		return info.Size
	}
	return n
}

// Stats implements tiers.Tier.
func (t *Tier) Stats() tiers.Stats {
	h := t.store.Health()
	health := tiers.Health{
		Hanging: h.Hanging, Files: h.Files, Writes: h.Writes, Breaks: h.Breaks, Refused: h.Refused,
		ReadOnly: h.ReadOnly, Poisoned: h.Poisoned, Reads: tiers.ReadErrors(h.Reads),
	}
	encoded := tiers.Encoded{Stored: t.store.Usage().Stored}
	for _, c := range t.store.Encoded() {
		encoded.Codecs = append(encoded.Codecs, tiers.Codec(c))
	}
	merged := tiers.Merged(t.store.Merged())
	return tiers.Stats{Health: &health, Encoded: &encoded, Merged: &merged, Striping: t.striping()}
}

// Merge implements tiers.Files: it rewrites segments of this rank.
func (t *Tier) Merge(ctx context.Context, budget int64, moved func([]block.ID)) (tiers.Merged, error) {
	m, err := t.store.Merge(ctx, budget, moved)
	return tiers.Merged(m), translate(err)
}

// Sparsest implements tiers.Files.
func (t *Tier) Sparsest(most int64) []block.ID { return t.store.Sparsest(most) }

// Sync implements tiers.Files.
func (t *Tier) Sync(ctx context.Context) error { return translate(t.store.Sync(ctx)) }

// Usage implements tiers.Tier.
func (t *Tier) Usage() tiers.Usage {
	u := t.store.Usage()
	return tiers.Usage{Used: u.Used, Foreign: u.Foreign, Payload: u.Payload, Blocks: u.Blocks}
}

// Close implements tiers.Tier. It also writes what Link and Unlink recorded and
// seals the current segment.
func (t *Tier) Close() error {
	if t.catalogue != nil {
		// A broken one has nothing to lose: it is filled again.
		_ = t.catalogue.Close()
	}
	if err := t.store.Close(); err != nil {
		return translate(err)
	}
	return nil
}

// pin adapts a reference.
type pin struct{ *segment.Ref }

// Bytes implements tiers.Pin: a file has no memory of its own.
func (pin) Bytes() []byte { return nil }

// Offset implements tiers.Pin.
func (pin) Offset() int64 { return -1 }

// Lend implements tiers.Pin.
func (pin) Lend() bool { return false }

// ReadInto implements tiers.Pin; see the package's documentation for when ctx
// ends first.
func (p pin) ReadInto(ctx context.Context, dst []byte) error {
	return translate(p.Ref.ReadInto(ctx, dst))
}
