package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/arena"
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
func (sp *space) grow(ready int64) {
	defer close(sp.grown)
	for capacity := int64(len(sp.data)); ready < capacity; {
		n, err := sp.nextStep(capacity - ready)
		if err == nil {
			err = sp.growBy(ready, n)
		}
		if err == nil {
			ready += n
			if !sp.pause(0) {
				break
			}
			continue
		}
		sp.endGrowth(err)
		if !errors.Is(err, arena.ErrNoShare) || !sp.pause(growPause) {
			return
		}
	}
	sp.endGrowth(nil)
}

// nextStep returns how much of the missing bytes is made ready next: a whole
// step, or, where there is no room for one, what can be had without taking all.
// It looks for room first: the kernel finds out that there is too little by
// taking all there is, which others would miss at that moment, or by ending a
// process.
func (sp *space) nextStep(missing int64) (int64, error) {
	want := min(growStep, missing)
	room, err := sp.arena.Room()
	if err != nil {
		return 0, err
	}
	of, short, remedy := "its file system", arena.ErrNoShare, "free space there"
	if sp.left != nil {
		if left, bound := sp.left(); left < room {
			room, of, short, remedy = left, bound, ErrMemory, "raise the limit (sbatch --mem, or that of the container), or end what else uses memory there"
		}
	}
	if room >= want {
		return want, nil
	}
	if part := (room - growSpare) / growUnit * growUnit; part > 0 {
		return part, nil
	}
	return 0, fmt.Errorf("%s: the next %d bytes of the arena, with %d free in %s: %w; %s, or lower %s.bytes", sp.name, want, room, of, short, remedy, sp.name)
}

// pause waits; false when the tier is closed.
func (sp *space) pause(d time.Duration) bool {
	select {
	case <-sp.stop:
		return false
	default:
	}
	if d == 0 {
		return true
	}
	select {
	case <-sp.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// growBy makes n bytes ready, or leaves the file system what it has.
func (sp *space) growBy(ready, n int64) error {
	at := sp.fileOffset(ready)
	if err := sp.arena.Commit(at, n); errors.Is(err, arena.ErrNoShare) {
		return errors.Join(err, sp.arena.Drop(at, n))
	} else if err != nil {
		return err
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.mu.alloc.Grow(n)
	if sp.super != nil {
		storeReady(sp.super, ready+n)
	}
	sp.grew.Broadcast()
	return nil
}

// endGrowth has nobody wait for memory any more; err says why there is less of
// it than there is to be.
func (sp *space) endGrowth(err error) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	select {
	case <-sp.settled:
	default:
		close(sp.settled)
	}
	sp.mu.growing, sp.mu.growErr = false, err
	sp.grew.Broadcast()
}

// Ready reports how much memory is ready for blocks, how much there will be,
// and why there is less of it, if a step was refused: the error matches
// arena.ErrNoShare while there is no room, ErrMemory too if it is memory that
// is short, and growth goes on when that is over.
func (sp *space) Ready() (ready, capacity int64, err error) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.mu.alloc.Size(), int64(len(sp.data)), sp.mu.growErr
}

// WaitReady returns when all memory is ready, a step was refused, which its
// error says, or ctx ends.
func (sp *space) WaitReady(ctx context.Context) error { return sp.waitGrowth(ctx, sp.settled) }

// WaitGrown returns when all memory is ready, however long the file system has
// no room for it; or with an error when growth has ended without, as Close ends
// it.
func (sp *space) WaitGrown(ctx context.Context) error { return sp.waitGrowth(ctx, sp.grown) }

func (sp *space) waitGrowth(ctx context.Context, ended <-chan struct{}) error {
	select {
	case <-ended:
		ready, capacity, err := sp.Ready()
		if err == nil && ready < capacity {
			err = fmt.Errorf("%s: memory is not ready: %w", sp.name, tiers.ErrClosed)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: memory is not ready: %w", sp.name, ctx.Err())
	}
}
