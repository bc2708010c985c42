package cascade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/cascade/names"
)

// FillItem is one block of a PutFrom: its bytes come from a callback.
type FillItem struct {
	Entry Entry
	Size  int64 // bytes

	// Fill writes all of Stage.Bytes, in order, and tells so by Stage.Filled or FilledAs.
	// It must not end the stage. Its error drops the block.
	Fill func(*Stage) error

	// Replace stores the block even if its name is visible on this rank with
	// the same size already.
	Replace bool
}

// Spread calls do for each i, 0 ≤ i < n, in any order and as many at once as it
// likes, and returns when all calls have.
type Spread func(n int, do func(i int))

// fillAtOnce bounds the bytes of a PutFrom that are staged at once: enough to
// keep several CPUs busy, few enough that the first blocks are not long invisible.
// Of a small tier it is a 16th.
const fillAtOnce = 32 << 20

// PutFrom stores blocks, those of one chain together and head first, as one
// request of the eviction policy; their ids are computed later. spread calls Fill,
// which must allow it; blocks become visible in their order. An item that is
// stored on this rank already is not filled, but refreshed in the eyes of the
// policy. An item that fails does not keep the next ones from being stored. The
// result has an error or nil for each: those of Stage and Commit, and of Fill.
func (s *Store) PutFrom(ctx context.Context, items []FillItem, spread Spread) []error {
	errs := make([]error, len(items))
	stored := make([]*names.Name, 0, len(items))
	for next := 0; next < len(items); {
		for _, f := range s.fillTogether(ctx, items[next:], spread) {
			if f.err != nil {
				errs[next] = fmt.Errorf("block %d of %d: %w", next, len(items), f.err)
			} else {
				stored = append(stored, f.name)
			}
			next++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for from := 0; from < len(stored); {
		to := from + 1
		for to < len(stored) && stored[to].Parent() == stored[to-1] {
			to++
		}
		s.refreshLocked(stored[from:to]) // a piece of one chain
		from = to
	}
	return errs
}

// filling is what becomes of a FillItem: a stage, then a name, or an error.
type filling struct {
	stage *Stage
	name  *names.Name
	err   error
}

// fillTogether settles the first items, at least one.
func (s *Store) fillTogether(ctx context.Context, items []FillItem, spread Spread) []filling {
	all := s.stageTogether(ctx, items)
	spread(len(all), func(i int) {
		if f := &all[i]; f.stage != nil {
			f.err = items[i].Fill(f.stage)
		}
	})
	for i := range all {
		switch f := &all[i]; {
		case f.stage == nil:
		case f.err != nil:
			f.stage.Abort()
		default:
			f.name, _, f.err = f.stage.commit(ctx, items[i].Entry, BlockID{})
		}
	}
	return all
}

// inHandPatience is how long room is looked for while there are stages in hand,
// in which others may wait for theirs.
const inHandPatience = 2 * time.Millisecond

// stageTogether begins the first items, at least one: up to fillAtOnce, and as
// many as room is found for without waiting for what these, or others like them,
// have in hand.
func (s *Store) stageTogether(ctx context.Context, items []FillItem) []filling {
	all := make([]filling, 0, len(items))
	bytes, most, inHand := int64(0), min(fillAtOnce, s.MemoryCapacity()/16), false
	for i := range items {
		it := &items[i]
		if bytes += it.Size; bytes > most && i > 0 {
			return all
		}
		f := filling{err: it.Entry.Check()}
		if f.err == nil && !it.Replace {
			f.name = s.storedAs(it.Entry.Namespace, it.Entry.Key, it.Size)
		}
		if f.err == nil && f.name == nil {
			f.stage, f.err = s.tryStage(ctx, it.Size, s.mem...)
			switch {
			case f.err == nil && !inHand:
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, inHandPatience)
				defer cancel()
				inHand = true
			case inHand && errors.Is(f.err, ErrNoRoom):
				return all // it waits once these are stored
			case f.err != nil:
				s.countRejected()
			}
		}
		all = append(all, f)
	}
	return all
}

// storedAs returns a name that is visible on this rank and has size bytes, or
// nil.
func (s *Store) storedAs(ns, key string, size int64) *names.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.lookupLocked(ns, key); n != nil && stateOf(n).Info.Size == size {
		return n
	}
	return nil
}

// GetBatchUnverified is GetBatch for callers that read the bytes once
// themselves: see GetUnverified.
func (s *Store) GetBatchUnverified(ctx context.Context, ns string, keys []string) ([]*View, error) {
	return s.get(ctx, ns, keys, getting{})
}

// MemoryCapacity is the bytes of the fastest memory tier.
func (s *Store) MemoryCapacity() int64 { return s.mem[0].tier.Usage().Capacity }
