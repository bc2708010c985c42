package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

const (
	// growStep is how much is reserved and touched at a time: long enough to be
	// efficient, short enough that the first put waits milliseconds.
	growStep = 32 << 20

	// growUnit is what shorter steps are multiples of, where there is no room for
	// a whole one; they leave growSpare to others.
	growUnit  = 2 << 20
	growSpare = 4 << 20

	// growPause is how long is waited for room once there is none.
	growPause = time.Second
)

// ErrMemory says that memory is short, of the job or of the node, rather than
// room in the file system of the arena. It matches arena.ErrNoShare.
var ErrMemory = fmt.Errorf("memory is short: %w", arena.ErrNoShare)

// grow makes memory ready step by step until all of it is. While there is no
// room, what is ready serves alone.
func (t *Tier) grow(g geometry, ready int64) {
	defer fault.Guard()()
	defer close(t.growDone)
	for ready < g.capacity {
		n, err := t.nextStep(g.capacity - ready)
		if err == nil {
			err = t.growBy(g, ready, n)
		}
		if err == nil {
			ready += n
			if !t.pause(0) {
				break
			}
			continue
		}
		t.endGrowth(err)
		if !errors.Is(err, arena.ErrNoShare) || !t.pause(growPause) {
			return
		}
	}
	t.endGrowth(nil)
}

// nextStep returns how much of the missing bytes is made ready next: a whole
// step, or, where there is no room for one, what can be had without taking all.
// It looks for room first: the kernel finds out that there is too little by
// taking all there is, which others would miss at that moment, or by ending a
// process.
func (t *Tier) nextStep(missing int64) (int64, error) {
	want := min(growStep, missing)
	room, err := t.arena.Room()
	if err != nil {
		return 0, err
	}
	of, short, remedy := "its file system", arena.ErrNoShare, "free space there"
	if t.left != nil {
		if left, bound := t.left(); left < room {
			room, of, short, remedy = left, bound, ErrMemory, "raise the limit (sbatch --mem, or that of the container), or end what else uses memory there"
		}
	}
	if room >= want {
		return want, nil
	}
	if part := (room - growSpare) / growUnit * growUnit; part > 0 {
		return part, nil
	}
	return 0, fmt.Errorf("%s: the next %d bytes of the arena, with %d free in %s: %w; %s, or lower %s.bytes", t.name, want, room, of, short, remedy, t.name)
}

// pause waits; false when the tier is closed.
func (t *Tier) pause(d time.Duration) bool {
	select {
	case <-t.stop:
		return false
	default:
	}
	if d == 0 {
		return true
	}
	select {
	case <-t.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// growBy makes n bytes ready, or leaves the file system what it has.
func (t *Tier) growBy(g geometry, ready, n int64) error {
	if err := t.arena.Commit(g.data+ready, n); errors.Is(err, arena.ErrNoShare) {
		return errors.Join(err, t.arena.Drop(g.data+ready, n))
	} else if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alloc.Grow(n)
	if t.super != nil {
		storeReady(t.super, ready+n)
	}
	t.grew.Broadcast()
	return nil
}

// endGrowth has nobody wait for memory any more; err says why there is less of
// it than there is to be.
func (t *Tier) endGrowth(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended.Do(func() { close(t.settled) })
	t.growing, t.growErr = false, err
	t.grew.Broadcast()
}

// Ready reports how much memory is ready for blocks, how much there will be,
// and why there is less of it, if a step was refused: the error matches
// arena.ErrNoShare while there is no room, ErrMemory too if it is memory that
// is short, and growth goes on when that is over.
func (t *Tier) Ready() (ready, capacity int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.alloc.Size(), int64(len(t.data)), t.growErr
}

// WaitReady returns when all memory is ready, a step was refused, which its
// error says, or ctx ends.
func (t *Tier) WaitReady(ctx context.Context) error {
	select {
	case <-t.settled:
		_, _, err := t.Ready()
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: memory is not ready: %w", t.name, ctx.Err())
	}
}

// WaitGrown returns when all memory is ready, however long the file system has
// no room for it; or with an error when growth has ended without, as Close ends
// it.
func (t *Tier) WaitGrown(ctx context.Context) error {
	select {
	case <-t.growDone:
		ready, capacity, err := t.Ready()
		if err == nil && ready < capacity {
			err = fmt.Errorf("%s: memory is not ready: %w", t.name, tiers.ErrClosed)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: memory is not ready: %w", t.name, ctx.Err())
	}
}

// Stats implements tiers.Tier: there is nothing but the tier's Usage.
func (t *Tier) Stats() tiers.Stats { return tiers.Stats{} }

// Usage implements tiers.Tier. Capacity is what there will be once all memory
// is ready; while a step is refused, what is ready.
func (t *Tier) Usage() tiers.Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := tiers.Usage{Capacity: int64(len(t.data)), Used: t.alloc.Used(), Payload: t.payload, Blocks: len(t.slots)}
	if t.growErr != nil {
		u.Missing = u.Capacity - t.alloc.Size()
		u.Capacity -= u.Missing
		u.Lacks = t.growErr.Error()
	}
	return u
}
