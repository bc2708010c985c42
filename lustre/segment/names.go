package segment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

type nameKey struct{ namespace, key string }

const (
	flushAt    = 1024    // waiting records that start a write of their own
	maxWaiting = 1 << 17 // waiting records above which Link and Unlink fail
	flushWait  = 30 * time.Second
)

// Link records one more name of a stored block. It becomes durable with the
// next Put, Sync or Close. Errors: ErrNotFound, ErrUnavailable (too many names
// wait for a file system that takes none), ErrBadItem.
func (s *Store) Link(id block.ID, n block.Name) error {
	return s.enqueue(format.Record{ID: id, Name: n}, true)
}

// Unlink records that a name is withdrawn as of n.Seq; only Namespace, Key and
// Seq count. It becomes durable as Link does. Errors: ErrUnavailable, ErrBadItem.
func (s *Store) Unlink(_ block.ID, n block.Name) error {
	return s.enqueue(format.Record{Name: n, Dropped: true}, false)
}

func (s *Store) enqueue(r format.Record, mustExist bool) error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return tiers.ErrClosed
	}
	if mustExist {
		if _, err := s.findLocked(r.ID); err != nil {
			return err
		}
	}
	if len(s.waiting) >= maxWaiting {
		return unavailable("record a name", fmt.Errorf("%d names wait to be written: check the file system", len(s.waiting)))
	}
	s.waiting = append(s.waiting, r)
	if len(s.waiting) >= flushAt && !s.flushing {
		s.flushing = true
		s.jobs++
		go s.flush()
	}
	return nil
}

// flush writes waiting names once; what fails goes out with the next Put. The
// caller has counted the job that runWrite ends.
func (s *Store) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	s.runWrite(ctx, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushing = false
}

// pendingNames are the records that are not durable yet. Guarded by index.mu.
type pendingNames struct {
	waiting  []format.Record
	loads    map[*load]struct{} // on their way to the file system
	flushing bool
}

// load is the names that one write has with it.
type load struct {
	names []format.Record
	done  chan struct{} // closed when they are durable or wait again
	lost  bool          // they wait again; read it after done
}

func newLoad(s *Store) *load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &load{names: s.waiting, done: make(chan struct{})}
	s.waiting = nil
	if len(l.names) > 0 {
		s.loads[l] = struct{}{}
	}
	return l
}

// end ends a load of s. Names that did not become durable wait again.
func (l *load) end(s *Store, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !durable {
		l.lost = true
		s.waiting = append(l.names, s.waiting...)
	}
	delete(s.loads, l)
	close(l.done)
}

// pendingLocked returns the names of which records are not durable yet.
func (p *pendingNames) pendingLocked() map[nameKey]struct{} {
	all, lists := map[nameKey]struct{}{}, [][]format.Record{p.waiting}
	for l := range p.loads {
		lists = append(lists, l.names)
	}
	for _, r := range slices.Concat(lists...) {
		all[nameKey{r.Name.Namespace, r.Name.Key}] = struct{}{}
	}
	return all
}

// Sync makes the names recorded so far durable. Errors: ErrUnavailable.
func (s *Store) Sync(ctx context.Context) error {
	for again := true; again; {
		s.mu.Lock()
		others := slices.Collect(maps.Keys(s.loads))
		s.mu.Unlock()
		if err := s.admit(nil); err != nil {
			return err
		}
		if err := s.runWrite(ctx, nil); err != nil {
			return err
		}
		again = false
		for _, l := range others { // writes of others that took names along
			select {
			case <-l.done:
				again = again || l.lost
			case <-ctx.Done():
				return unavailable("wait for names on their way", ctx.Err())
			}
		}
	}
	return nil
}

// checkName reports whether a record of n can be written.
func checkName(n block.Name) error {
	if len(n.Namespace) > block.MaxKey || len(n.Key) > block.MaxKey || len(n.Parent) > block.MaxKey {
		return fmt.Errorf("%w: namespace, key or parent of %.40q is longer than %d bytes", ErrBadItem, n.Key, block.MaxKey)
	}
	return nil
}
