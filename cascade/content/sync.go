package content

import (
	"context"

	"cascadekv/internal/fault"
)

// syncing is a sync of changes of names that has not begun yet, or has.
type syncing struct {
	done chan struct{} // closed when it is over
	err  error         // how it ended; read it after done
}

// sync makes durable what was kept before. It waits until ctx ends, which does not end the
// sync: a write that is ended costs this rank the segment that it goes to. All who wait
// meanwhile share the next one.
func (l *Ledger) sync(ctx context.Context) error {
	l.state.Mu.Lock()
	if err := l.state.CheckOpenLocked(); err != nil {
		l.state.Mu.Unlock()
		return err
	}
	s := l.guarded.nextSync
	if s == nil {
		s = &syncing{done: make(chan struct{})}
		l.guarded.nextSync = s
	}
	if work := l.guarded.work; !l.guarded.syncs {
		l.guarded.syncs = true
		l.state.Workers.Go(func() { l.syncAll(work) })
	}
	l.state.Mu.Unlock()
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncAll syncs until nobody waits for it.
func (l *Ledger) syncAll(ctx context.Context) {
	defer fault.Guard()()
	for s := l.takeSync(); s != nil; s = l.takeSync() {
		s.err = l.durable.SyncInTurn(ctx)
		close(s.done)
	}
}

func (l *Ledger) takeSync() *syncing {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	s := l.guarded.nextSync
	l.guarded.nextSync, l.guarded.syncs = nil, s != nil
	return s
}
