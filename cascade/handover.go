package cascade

import (
	"context"
	"errors"
)

// A store may be followed by another one in the same process, with another
// program (exec), while clients go on reading views and filling stages in the
// arena. The first one settles what must not be lost, and leaves; the next one is
// opened on tiers that were given the claims, the ranges in use, and hands a view
// or a stage out for each of them.

// keptRange is what keeps one range of the arena for a client.
type keptRange struct {
	view  *View
	stage *Stage
}

// Claims are the views and stages of clients of the store that this one follows.
type Claims struct {
	store *Store
	left  []keptRange // that nobody has taken. Guarded by State.Mu
}

// Claims returns what clients of an earlier store still use.
func (s *Store) Claims() *Claims { return &s.claims }

// takeLocked makes views and stages of what the memory tiers keep. The
// caller holds the mutex, and has not dropped what has no name yet.
func (c *Claims) takeLocked() {
	s := c.store
	m := s.state.Shared()
	if m == nil {
		return
	}
	for _, r := range m.Memory.KeptRanges() {
		var k keptRange
		switch {
		case r.Pin != nil:
			k.view = s.state.ClaimedViewLocked(r.Pin, m)
		case r.Slot != nil:
			k.stage = &Stage{store: s, mem: m, slot: r.Slot, size: int64(len(r.Slot.Bytes())), kept: true}
		}
		c.left = append(c.left, k)
	}
}

// View hands over the view of a claim, in the order in which the tier was
// given them, held as by Keep; tier is what Tier will return. It is nil when the
// range could not be kept, or was handed over before.
func (c *Claims) View(i int, tier string) *View {
	c.store.state.Mu.Lock()
	defer c.store.state.Mu.Unlock()
	if i < 0 || i >= len(c.left) || c.left[i].view == nil {
		return nil
	}
	v := c.left[i].view
	c.left[i].view = nil
	v.ServedBy(tier)
	return v
}

// Stage likewise hands over a stage.
func (c *Claims) Stage(i int) *Stage {
	c.store.state.Mu.Lock()
	defer c.store.state.Mu.Unlock()
	if i < 0 || i >= len(c.left) {
		return nil
	}
	st := c.left[i].stage
	c.left[i].stage = nil
	return st
}

// Drop ends the claims that nobody took.
func (c *Claims) Drop() {
	c.store.state.Mu.Lock()
	left := c.left
	c.left = nil
	c.store.state.Mu.Unlock()
	for _, k := range left {
		if k.view != nil {
			k.view.Release()
		}
		if k.stage != nil {
			k.stage.Abort()
		}
	}
}

// Settle makes changes of names in the cold tier durable, so that a store that
// follows undoes no deletion. It writes no block. Nothing ends with it.
func (s *Store) Settle(ctx context.Context) error {
	if s.state.Cold == nil {
		return nil
	}
	if err := s.others.FlushTombstones(ctx); err != nil {
		return err
	}
	return s.write.SyncInTurn(ctx)
}

// Leave closes what lies in files, the cold tier and a memory tier on disks, for the store that follows
// at once in this process, and leaves what is in memory where it is: dirty blocks are not written, views
// and stages keep their bytes. It reports whether it ended the store. Without such
// tiers it does not: there is nothing to close.
func (s *Store) Leave(ctx context.Context) (ended bool, err error) {
	deep := s.state.Deep()
	if s.state.Cold == nil && deep == nil {
		return false, nil
	}
	if err := s.shut(ctx); err != nil {
		return true, err
	}
	if deep != nil {
		err = deep.Memory.Close()
	}
	if s.state.Cold == nil {
		return true, err
	}
	if err := s.write.SyncCold(ctx); err != nil {
		s.state.Log.Warn("not all changes of names in the cold tier are durable", "err", err)
	}
	return true, errors.Join(err, s.state.Cold.Files.Close())
}
