package cascade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/cascade/names"
)

// FuncItem is one block of a PutBatchFunc: its bytes come from a callback.
type FuncItem struct {
	Entry Entry
	Size  int64 // bytes

	// Write writes all of Stage.Bytes, in order, and reports that by Stage.Filled or FilledAs.
	// It must not end the stage. Its error drops the block.
	Write func(*Stage) error

	// Placed is a stage that is filled already, see Direct: Write is called with it, and has nothing to write. It is not ended where
	// nothing is to be stored, so the caller ends it in any case. Nil: there is none.
	Placed *Stage

	// Replace stores the block even if its name is visible on this rank with
	// the same size already.
	Replace bool
}

// ParallelFor calls do for each i, 0 ≤ i < n, in any order and as many at once as it
// likes, and returns when all calls have.
type ParallelFor func(n int, do func(i int))

// putAtOnce bounds the bytes of a PutBatchFunc that are staged at once: enough to
// keep several CPUs busy, few enough that the first blocks are not long invisible.
// Of a small tier it is a 16th.
const putAtOnce = 32 << 20

// PutBatchFunc stores blocks, those of one chain together and head first, as one
// request of the eviction policy; their ids are computed later. spread calls Write,
// which must allow it; blocks become visible in their order. An item that is
// stored on this rank already is not filled, but refreshed in the eyes of the
// policy. An item that fails does not keep the next ones from being stored. The
// result has an error or nil for each: those of Stage and Commit, and of Write. h is declared of the blocks.
func (s *Store) PutBatchFunc(ctx context.Context, items []FuncItem, spread ParallelFor, h Hint) []error {
	errs := make([]error, len(items))
	stored, shared := make([]*names.Name, 0, len(items)), 0
	for next := 0; next < len(items); {
		for _, f := range s.putTogether(ctx, items[next:], spread) {
			if f.err != nil {
				errs[next] = fmt.Errorf("block %d of %d: %w", next, len(items), f.err)
			} else {
				stored = append(stored, f.name)
				if next < h.Shared {
					shared = len(stored)
				}
			}
			next++
		}
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	for from := 0; from < len(stored); {
		to := from + 1
		for to < len(stored) && stored[to].Parent() == stored[to-1] {
			to++
		}
		h.Shared = shared - from
		s.state.Requests.StoredLocked(h, stored[from:to]...) // a piece of one chain
		from = to
	}
	return errs
}

// pendingPut is what becomes of a FuncItem: a stage, then a name, or an error.
type pendingPut struct {
	stage *Stage
	name  *names.Name
	err   error
}

// putTogether stores the first items, at least one.
func (s *Store) putTogether(ctx context.Context, items []FuncItem, spread ParallelFor) []pendingPut {
	all := s.stageTogether(ctx, items)
	spread(len(all), func(i int) {
		if f := &all[i]; f.stage != nil {
			f.err = items[i].Write(f.stage)
		}
	})
	for i := range all {
		switch f := &all[i]; {
		case f.stage == nil:
		case f.err != nil:
			f.stage.Abort()
		default:
			f.name, _, f.err = f.stage.commit(ctx, items[i].Entry, f.stage.id, batched)
		}
	}
	return all
}

// inHandPatience is how long room is looked for while there are stages in hand,
// in which others may wait for theirs.
const inHandPatience = 2 * time.Millisecond

// stageTogether begins the first items, at least one: up to putAtOnce, and as
// many as room is found for without waiting for what these, or others like them,
// have in hand.
func (s *Store) stageTogether(ctx context.Context, items []FuncItem) []pendingPut {
	all := make([]pendingPut, 0, len(items))
	bytes, most, inHand := int64(0), min(putAtOnce, s.MemoryCapacity()/16), false
	for i := range items {
		it := &items[i]
		if bytes += it.Size; bytes > most && i > 0 {
			return all
		}
		f := pendingPut{err: it.Entry.Check()}
		if f.err == nil && !it.Replace {
			f.name = s.state.StoredAs(it.Entry.Namespace, it.Entry.Key, it.Size)
		}
		if f.err == nil && f.name == nil {
			f.stage = it.Placed
		}
		if f.err == nil && f.name == nil && f.stage == nil {
			f.stage, f.err = s.tryStage(ctx, it.Size, s.state.Near()...)
			switch {
			case f.err == nil && !inHand:
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, inHandPatience)
				defer cancel()
				inHand = true
			case inHand && errors.Is(f.err, ErrNoRoom):
				return all // it waits once these are stored
			case f.err != nil:
				s.state.Count.Rejected()
				Refused(s, it.Entry.Namespace, it.Entry.Key, f.err)
			}
		}
		all = append(all, f)
	}
	return all
}

// MemoryCapacity is the bytes of the fastest memory tier.
func (s *Store) MemoryCapacity() int64 { return s.state.Mem[0].Memory.Usage().Capacity }
