package cascade

import (
	"context"
	"time"
)

// syncEvery is how long names, and withdrawals of names, may wait for the cold
// tier to make them durable: what a kill -9 can undo.
const syncEvery = time.Second

// tellCold notes the outcome of telling the cold tier of a name. What it only
// keeps in mind the cleaner makes durable; a block of memory with such a name
// stays until then: see fallOf. The caller holds the mutex.
func (s *Store) tellCold(err error) {
	s.noteCold(err)
	if err != nil {
		return
	}
	if s.told == s.synced {
		s.wakeCleaner(false)
	}
	s.told++
}

// wantSync makes the cleaner sync now. The caller holds the mutex.
func (s *Store) wantSync() {
	s.hurry = true
	s.wakeCleaner(false)
}

func (s *Store) syncWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hurry && s.told > s.synced
}

func (s *Store) namesWait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told > s.synced
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

// syncCold makes durable what the cold tier was told so far. The caller holds
// the cleaning token.
func (s *Store) syncCold(ctx context.Context) error {
	s.mu.Lock()
	upTo, waited := s.told, s.told > s.synced
	s.hurry = false
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
	s.synced = upTo
	s.announce()
	return nil
}
