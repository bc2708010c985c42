package cascade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Drain completes pending ids, writes every dirty block to the cold tier and
// makes what that was told of names durable; then homes are told where all of it
// lies. It returns how many blocks it wrote.
func (s *Store) Drain(ctx context.Context) (int, error) {
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err == nil {
		err = s.completePending(ctx)
	}
	if err != nil {
		return 0, err
	}
	written, err := s.drain(ctx)
	if err == nil {
		s.tellHomes(ctx)
	}
	return written, err
}

// completePending gives every block in memory its id.
func (s *Store) completePending(ctx context.Context) error {
	for _, b := range s.withoutID() {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		v := s.pinFastest(b)
		s.mu.Unlock()
		if v != nil {
			s.complete(v.background())
			v.Release()
		}
	}
	return nil
}

// withoutID lists the blocks that were acknowledged and not hashed yet.
func (s *Store) withoutID() []*entity {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pending []*entity
	for _, b := range s.blocks {
		if b.countedPending {
			pending = append(pending, b)
		}
	}
	return pending
}

func (s *Store) drain(ctx context.Context) (written int, err error) {
	if s.cold == nil {
		return 0, nil
	}
	select {
	case s.cleaning <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-s.cleaning }()
	dirty := s.dirtyBlocks()
	for len(dirty) > 0 {
		var views []*View
		views, dirty = s.pinDirty(dirty)
		n, err := s.writeCold(ctx, views)
		written += n
		if err != nil {
			return written, fmt.Errorf("%w: %w", errDrain, err)
		}
	}
	if err := s.syncCold(ctx); err != nil {
		return written, fmt.Errorf("%w: %w", errDrain, err)
	}
	return written, nil
}

var errDrain = errors.New("cascade: drain is incomplete: what the cold tier refused stays in memory only")

// dirtyBlocks lists what a drain writes, in the order in which it was put, so
// that chains lie together.
func (s *Store) dirtyBlocks() []*entity {
	s.mu.Lock()
	defer s.mu.Unlock()
	var dirty []*entity
	for _, b := range s.blocks {
		if b.countedDirty {
			dirty = append(dirty, b)
		}
	}
	slices.SortFunc(dirty, func(x, y *entity) int { return cmp.Compare(x.names[0].entry.Seq, y.names[0].entry.Seq) })
	return dirty
}

// pinDirty pins the first batch of blocks that are still dirty and returns the
// rest.
func (s *Store) pinDirty(dirty []*entity) (views []*View, rest []*entity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bytes int64
	for len(dirty) > 0 && len(views) < cleanBlocks && bytes < cleanBytes {
		b := dirty[0]
		dirty = dirty[1:]
		if !b.countedDirty || b.writing {
			continue
		}
		if v := s.pinFastest(b); v != nil {
			b.writing = true
			views = append(views, v.background())
			bytes += v.Size()
		}
	}
	return views, dirty
}
