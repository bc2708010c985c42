package segment

import (
	"context"
	"fmt"
	"time"

	"cascadekv/internal/block"
)

type nameKey struct{ namespace, key string }

// record is a NAME, or a DROP of which only namespace, key and seq count.
type record struct {
	id      block.ID
	name    block.Name
	dropped bool
}

func (r record) append(p []byte) []byte {
	if r.dropped {
		return appendDrop(p, r.name)
	}
	return appendName(p, r.id, r.name)
}

// nameState is the newest record of a name and how many records of it lie in
// all files, so that a tombstone is known to be one.
type nameState struct {
	key     nameKey
	file    *file // of the newest record
	id      block.ID
	seq     uint64
	dropped bool
	records int
}

// noteLocked accounts for a record that lies, or may lie, in f.
func (s *Store) noteLocked(f *file, r record) {
	k := nameKey{r.name.Namespace, r.name.Key}
	st := s.names[k]
	if st == nil {
		st = &nameState{key: k}
		s.names[k] = st
	}
	st.records++
	f.recs = append(f.recs, st)
	if r.name.Seq >= st.seq {
		st.file, st.id, st.seq, st.dropped = f, r.id, r.name.Seq, r.dropped
	}
}

const (
	flushAt    = 1024    // waiting records that start a write of their own
	maxWaiting = 1 << 17 // waiting records above which Link and Unlink fail
	flushWait  = 30 * time.Second
)

// Link records one more name of a stored block. It becomes durable with the
// next Put, Sync or Close. Errors: ErrNotFound, ErrUnavailable (too many names
// wait for a file system that takes none), ErrBadItem.
func (s *Store) Link(id block.ID, n block.Name) error {
	return s.enqueue(record{id: id, name: n}, true)
}

// Unlink records that a name is withdrawn as of n.Seq; only Namespace, Key and
// Seq count. It becomes durable as Link does. Errors: ErrUnavailable, ErrBadItem.
func (s *Store) Unlink(n block.Name) error {
	return s.enqueue(record{name: n, dropped: true}, false)
}

func (s *Store) enqueue(r record, mustExist bool) error {
	if err := checkName(r.name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if mustExist {
		if _, err := s.findLocked(r.id); err != nil {
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

func (s *Store) takeWaiting() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting
	s.waiting = nil
	return w
}

func (s *Store) giveBack(w []record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(w, s.waiting...)
}
