package cascade

import (
	"context"
	"time"
)

// syncEvery is how long names, and withdrawals of names, may wait for the cold
// tier to make them durable: what a kill -9 can undo.
const syncEvery = time.Second

// noteLinkLocked notes the outcome of a Link or Unlink of the cold tier. What it
// only keeps in mind the cleaner makes durable; a block of memory with such a
// name stays until then: see fallOfLocked.
func (s *Store) noteLinkLocked(err error) {
	s.noteColdLocked(err)
	if err != nil {
		return
	}
	if s.mu.linkSeq == s.mu.syncedSeq {
		s.wakeCleanerLocked(false)
	}
	s.mu.linkSeq++
}

// requestSyncLocked makes the cleaner sync now.
func (s *Store) requestSyncLocked() {
	s.mu.syncRequested = true
	s.wakeCleanerLocked(false)
}

func (s *Store) syncWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.syncRequested && s.mu.linkSeq > s.mu.syncedSeq
}

func (s *Store) namesWait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.linkSeq > s.mu.syncedSeq
}

// syncOrLater syncs the cold tier and returns when to try again, nil for no
// need to.
func (s *Store) syncOrLater(ctx context.Context) <-chan time.Time {
	select {
	case s.cleaning <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-s.cleaning }()
	if err := s.syncCold(ctx); err != nil && ctx.Err() == nil {
		s.leaveAlone(err)
		return time.After(coldRetry)
	}
	return nil
}

// syncCold makes durable the changes of names that the cold tier has been given. The caller holds
// the cleaning token.
func (s *Store) syncCold(ctx context.Context) error {
	s.mu.Lock()
	upTo, waited := s.mu.linkSeq, s.mu.linkSeq > s.mu.syncedSeq
	s.mu.syncRequested = false
	s.mu.Unlock()
	if !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	err := s.cold.Sync(ctx)
	s.heedRoom()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.syncedSeq = upTo
	s.wakeWaitersLocked()
	return nil
}
