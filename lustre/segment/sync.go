package segment

import (
	"context"
	"sync"
	"sync/atomic"

	"cascadekv/lustre/segment/pool"
)

// groupSync tracks which frames of a segment are durable. The zero value needs init.
type groupSync struct {
	syncMu     sync.Mutex // guards what follows
	synced     uint64     // frames below are durable
	written    uint64     // frames below are written
	syncing    bool
	wake       *sync.Cond
	poison     error
	poisonings *atomic.Uint64 // counts segments that were poisoned; nil: this one does not count
}

func (g *groupSync) init() { g.wake = sync.NewCond(&g.syncMu) }

// wrote notes that so many frames, or the footer behind them, are written in all.
func (g *groupSync) wrote(frames uint64) {
	g.syncMu.Lock()
	defer g.syncMu.Unlock()
	g.written = frames
}

// durable returns how many frames are.
func (g *groupSync) durable() uint64 {
	g.syncMu.Lock()
	defer g.syncMu.Unlock()
	return g.synced
}

// fail poisons the segment: the first error stays.
func (g *groupSync) fail(err error) error {
	g.syncMu.Lock()
	defer g.syncMu.Unlock()
	g.poisonLocked(err)
	g.wake.Broadcast()
	return err
}

func (g *groupSync) poisonLocked(err error) {
	if g.poison != nil {
		return
	}
	g.poison = err
	if g.poisonings != nil {
		g.poisonings.Add(1)
	}
}

func (g *groupSync) poisoned() error {
	g.syncMu.Lock()
	defer g.syncMu.Unlock()
	return g.poison
}

// syncWithin returns when frame number n is durable, or cannot be trusted. Callers
// that wait at the same time share one fsync. An fsync reports an error only
// once, so the first one speaks for all frames that were not durable before.
// It waits for the fsync of another no longer than ctx: an fsync that hangs takes
// one thread, not those of all who share it.
func (g *groupSync) syncWithin(ctx context.Context, n uint64, sync func() error) error {
	g.syncMu.Lock()
	defer g.syncMu.Unlock()
	for g.synced <= n {
		if g.poison != nil {
			return g.poison
		}
		if g.syncing {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			stop := context.AfterFunc(ctx, func() {
				g.syncMu.Lock()
				defer g.syncMu.Unlock()
				g.wake.Broadcast()
			})
			g.wake.Wait()
			stop()
			continue
		}
		g.syncing = true
		upTo := g.written
		var err error
		pool.Without(&g.syncMu, func() { err = sync() })
		g.syncing = false
		if err == nil {
			g.synced = upTo
		} else {
			g.poisonLocked(err)
		}
		g.wake.Broadcast()
	}
	return nil
}
