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
	err := s.checkOpenLocked()
	s.mu.Unlock()
	if err == nil {
		err = s.finalizePending(ctx)
	}
	if err != nil {
		return 0, err
	}
	written, err := s.drain(ctx)
	if err == nil {
		s.awaitHomes(ctx)
	}
	return written, err
}

// finalizePending gives every block in memory its id.
func (s *Store) finalizePending(ctx context.Context) error {
	for _, b := range s.withoutID() {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		v := s.pinFastestLocked(b)
		s.mu.Unlock()
		if v != nil {
			s.finalizeID(v.background())
			v.Release()
		}
	}
	return nil
}

// withoutID lists the blocks that were acknowledged and not hashed yet.
func (s *Store) withoutID() []*blockState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pending []*blockState
	for _, b := range s.mu.blocks {
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
	if err := s.takeToken(ctx); err != nil {
		return 0, err
	}
	defer s.giveToken()
	if _, err := s.findGone(ctx); err != nil {
		return 0, fmt.Errorf("%w: %w", errDrain, err)
	}
	for range drainRounds {
		n, err := s.writeAll(ctx, s.dirtyBlocks())
		written += n
		if err == nil {
			err = s.syncCold(ctx)
		}
		var gone []*blockState
		if err == nil {
			gone, err = s.findGone(ctx)
		}
		if err != nil {
			return written, fmt.Errorf("%w: %w", errDrain, err)
		}
		if len(gone) == 0 {
			return written, nil
		}
		written = max(written-len(gone), 0)
	}
	return written, fmt.Errorf("%w: %w", errDrain, errGone)
}

// drainRounds is how often a drain writes what somebody removes meanwhile.
const drainRounds = 3

// takeToken waits for the token that lets its holder write to the cold tier.
func (s *Store) takeToken(ctx context.Context) error {
	select {
	case s.cleaning <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) giveToken() { <-s.cleaning }

// writeAll writes blocks that are dirty to the cold tier, and returns how many. The
// caller holds the cleaning token.
func (s *Store) writeAll(ctx context.Context, dirty []*blockState) (written int, err error) {
	for len(dirty) > 0 {
		var views []*View
		views, dirty = s.pinDirty(dirty)
		n, err := s.writeCold(ctx, views)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

var errDrain = errors.New("cascade: drain is incomplete: what the cold tier refused stays in memory only")

// dirtyBlocks lists what a drain writes, in the order in which it was put, so
// that chains lie together.
func (s *Store) dirtyBlocks() []*blockState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var dirty []*blockState
	for _, b := range s.mu.blocks {
		if b.countedDirty {
			dirty = append(dirty, b)
		}
	}
	slices.SortFunc(dirty, func(x, y *blockState) int { return cmp.Compare(x.Names()[0].Seq(), y.Names()[0].Seq()) })
	return dirty
}

// pinDirty pins the first batch of blocks that are still dirty and returns the
// rest.
func (s *Store) pinDirty(dirty []*blockState) (views []*View, rest []*blockState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bytes int64
	for len(dirty) > 0 && len(views) < cleanBlocks && bytes < cleanBytes {
		b := dirty[0]
		dirty = dirty[1:]
		if !b.countedDirty || b.writing {
			continue
		}
		if v := s.pinFastestLocked(b); v != nil {
			b.writing = true
			views = append(views, v.background())
			bytes += v.Size()
		}
	}
	return views, dirty
}
