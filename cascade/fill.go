package cascade

import (
	"context"
	"fmt"
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

// PutFrom stores blocks, those of one chain together and head first, as one
// request of the eviction policy; their ids are computed later. An item that is stored on
// this rank already is not filled, but refreshed in the eyes of the policy. An
// item that fails does not keep the next ones from being stored. The result
// has an error or nil for each: those of Stage and Commit, and of Fill.
func (s *Store) PutFrom(ctx context.Context, items []FillItem) []error {
	errs := make([]error, len(items))
	stored := make([]*name, 0, len(items))
	for i := range items {
		n, err := s.putFrom(ctx, &items[i])
		if err != nil {
			errs[i] = fmt.Errorf("block %d of %d: %w", i, len(items), err)
			continue
		}
		stored = append(stored, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range stored {
		if i+1 == len(stored) || stored[i+1].parent != n { // else the next one refreshes n
			s.refresh(n)
		}
	}
	return errs
}

func (s *Store) putFrom(ctx context.Context, it *FillItem) (*name, error) {
	if err := it.Entry.Check(); err != nil {
		return nil, err
	}
	if !it.Replace {
		if n := s.storedAs(it.Entry.Namespace, it.Entry.Key, it.Size); n != nil {
			return n, nil
		}
	}
	st, err := s.Stage(ctx, it.Size)
	if err != nil {
		return nil, err
	}
	defer st.Abort()
	if err := it.Fill(st); err != nil {
		return nil, err
	}
	n, _, err := st.commit(it.Entry, BlockID{})
	return n, err
}

// storedAs returns a name that is visible on this rank and has size bytes, or
// nil.
func (s *Store) storedAs(ns, key string, size int64) *name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.lookup(ns, key); n != nil && n.block.info.Size == size {
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
