package cascade

import (
	"context"
)

// Drain finalizes pending ids, writes every dirty block to the cold tier and
// makes changes of names there durable; then it is published where all of it
// lies. It returns how many blocks it wrote.
func (s *Store) Drain(ctx context.Context) (int, error) {
	s.state.Mu.Lock()
	err := s.state.CheckOpenLocked()
	s.state.Mu.Unlock()
	if err == nil {
		err = s.write.FinalizePending(ctx)
	}
	if err != nil {
		return 0, err
	}
	written, err := s.write.Drain(ctx)
	if err == nil {
		s.content.Publish()
		s.others.AwaitHomes(ctx)
	}
	return written, err
}
