package nvme

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// errBehind is of blocks that come faster than the disk takes them. It is no failure of the tier, and no eviction
// helps.
var errBehind = fmt.Errorf("all memory for blocks on their way to the disk is in use: %w: %w", tiers.ErrShort, tiers.ErrUnavailable)

// slot is a block that is still arriving.
type slot struct {
	tiers.Hidden
	*filling
}

// filling is the memory of a slot. One goroutine at a time uses it.
type filling struct {
	tiers.Host
	t     *Tier
	at    int // first buffer
	ended bool
}

// Reserve implements tiers.Memory. It does not wait for the disk. While the pool grows, what is ready may be full:
// tiers.ErrShort, since nothing need leave for what comes. Errors: tiers.ErrUnavailable, too, for some time after
// a write has failed and while the disk does not answer, and, with tiers.ErrShort, while it does not keep up.
func (t *Tier) Reserve(size int64) (tiers.Slot, error) {
	defer t.lock()()
	s, err := t.reserveLocked(size)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (t *Tier) reserveLocked(size int64) (*slot, error) {
	ready, wanted, short := t.store.Ready()
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	n := t.files(size)
	switch broken := t.brokenLocked(); {
	case size < 0 || n > int64(wanted) || n > int64(len(t.mu.staging)):
		return nil, fmt.Errorf("%s: %d bytes: %w: it has %d GPU files of %d bytes, and memory for %d of them", Name, size, tiers.ErrTooLarge, wanted, t.o.FileBytes, len(t.mu.staging))
	case n > int64(ready) && short != nil:
		return nil, fmt.Errorf("%s: %d bytes: %w: %w", Name, size, tiers.ErrShort, short)
	case broken != nil:
		t.counts.refused.Add(1)
		return nil, fmt.Errorf("%s: %w: no write is tried for some time after one has failed: %w", Name, tiers.ErrUnavailable, broken)
	case t.mu.used+n > int64(ready) && ready < wanted && short == nil:
		return nil, fmt.Errorf("%s: %d bytes: %w: %d of %d GPU files are made by now", Name, size, tiers.ErrShort, ready, wanted)
	case t.mu.used+n > int64(ready):
		return nil, fmt.Errorf("%s: %d bytes: %w", Name, size, tiers.ErrFull)
	}
	at, ok := t.mu.staging.take(n)
	if !ok {
		t.counts.refused.Add(1)
		if t.mu.hangs() {
			return nil, fmt.Errorf("%s: %w: the disk has not answered for %v", Name, tiers.ErrUnavailable, hangsFrom)
		}
		return nil, fmt.Errorf("%s: %d bytes: %w", Name, size, errBehind)
	}
	t.mu.used += n
	t.mu.users++
	mem := t.memory[int64(at)*t.o.FileBytes:][:size:size]
	return &slot{filling: &filling{Host: mem, t: t, at: at}}, nil
}

// brokenLocked returns why new blocks are refused.
func (t *Tier) brokenLocked() error {
	if t.mu.broken != nil && time.Now().Before(t.mu.until) {
		return t.mu.broken
	}
	return nil
}

// CopyFrom implements tiers.Slot.
func (f *filling) CopyFrom(ctx context.Context, src tiers.Pin) error {
	if size := src.Info().Size; size != int64(len(f.Host)) {
		return fmt.Errorf("%s: a block of %d bytes for a slot of %d: %w", Name, size, len(f.Host), tiers.ErrTooLarge)
	}
	return src.ReadInto(ctx, f.Host)
}

// Commit implements tiers.Slot. The block can be read when it returns; it is written in the background. If that
// fails, it is gone.
func (f *filling) Commit(info block.Info, names []block.Name) error {
	_, err := f.commit(info, names)
	return err
}

func (f *filling) commit(info block.Info, names []block.Name) (*stored, error) {
	t := f.t
	defer t.lock()()
	if f.ended {
		return nil, nil
	}
	if err := t.refusedLocked(info, int64(len(f.Host)), names); err != nil {
		f.endLocked()
		return nil, err
	}
	f.ended = true
	t.mu.users--
	b := &stored{stay: newStay(), info: info, mem: f.Host, at: f.at, users: 1}
	for t.mu.stays[b.stay.generation()] != nil {
		b.stay = newStay()
	}
	t.addLocked(b, names)
	t.mu.queue = append(t.mu.queue, b)
	t.wakeLocked()
	t.kick()
	return b, nil
}

// addLocked makes a block one of the tier's, with names that refusedLocked has seen.
func (t *Tier) addLocked(b *stored, names []block.Name) {
	t.mu.index.add(b)
	t.mu.changes.add(encodeBlock(b.stay, b.info))
	b.seq = t.mu.seq
	for _, n := range names {
		_ = t.linkLocked(b, n)
	}
}

// refusedLocked returns why a block is not committed in a slot of so many bytes.
func (t *Tier) refusedLocked(info block.Info, size int64, names []block.Name) error {
	if err := t.usableLocked(); err != nil {
		return err
	}
	switch {
	case info.Size != size || info.ID.IsZero():
		return fmt.Errorf("%s: %w: block %v of %d bytes in a slot of %d", Name, tiers.ErrUnavailable, info.ID, info.Size, size)
	case t.mu.blocks[info.ID] != nil:
		return fmt.Errorf("%s: block %v: %w", Name, info.ID, tiers.ErrExists)
	}
	for _, n := range names {
		if err := checkName(n); err != nil {
			return err
		}
	}
	return nil
}

// Abort implements tiers.Slot.
func (f *filling) Abort() {
	defer f.t.lock()()
	if !f.ended {
		f.endLocked()
	}
}

// endLocked gives files and memory back.
func (f *filling) endLocked() {
	f.ended = true
	n := f.t.files(int64(len(f.Host)))
	f.t.mu.staging.give(f.at, n)
	f.t.mu.used -= n
	f.t.mu.users--
	f.t.wakeLocked()
}

// Put implements tiers.Tier. It waits for the disk.
func (t *Tier) Put(ctx context.Context, items ...tiers.Item) error {
	if err := t.putable(ctx, items); err != nil || len(items) == 0 {
		return err
	}
	done := make([]*stored, 0, len(items))
	err := func() error {
		for _, it := range items {
			b, err := t.putOne(ctx, it)
			if err != nil {
				return err
			}
			done = append(done, b)
		}
		return t.Sync(ctx)
	}()
	defer t.lock()()
	for _, b := range done {
		if err == nil && b.lost != nil {
			err = b.lost
		}
	}
	if err == nil {
		return nil
	}
	for _, b := range done {
		t.forgetLocked(b, nil)
	}
	return err
}

// putable returns why none of the items can be stored.
func (t *Tier) putable(ctx context.Context, items []tiers.Item) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, err)
	}
	defer t.lock()()
	if err := t.usableLocked(); err != nil {
		return err
	}
	seen := make(map[block.ID]struct{}, len(items))
	for _, it := range items {
		_, twice := seen[it.Info.ID]
		if seen[it.Info.ID] = struct{}{}; twice || t.mu.blocks[it.Info.ID] != nil {
			return fmt.Errorf("%s: block %v: %w", Name, it.Info.ID, tiers.ErrExists)
		}
	}
	return nil
}

// putOne commits an item. It waits while the disk does not keep up.
func (t *Tier) putOne(ctx context.Context, it tiers.Item) (b *stored, err error) {
	var s *slot
	if !t.await(ctx, func() bool {
		s, err = t.reserveLocked(it.Info.Size)
		return !errors.Is(err, errBehind)
	}) {
		return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.Write(0, 0, it.Data); err != nil {
		s.Abort()
		return nil, err
	}
	return s.commit(it.Info, it.Names)
}
