package segment

import (
	"context"
	"errors"
	"os"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/pool"
)

// reclaimSoonLocked starts unlinking empty segments in the background.
func (s *Store) reclaimSoonLocked() {
	if s.reclaiming || s.closed {
		return
	}
	s.reclaiming = true
	s.jobs++
	go func() {
		defer s.endJob()
		s.writes <- struct{}{} // an unlink that hangs takes one thread, for good
		defer func() { <-s.writes }()
		s.reclaim()
	}()
}

// reclaim unlinks segments that hold nothing any more, until there is none. One
// that cannot be unlinked stays for the next incarnation.
func (s *Store) reclaim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		f := s.emptyLocked()
		if f == nil {
			s.reclaiming = false
			return
		}
		if f.path != "" && !s.lease.Trusted(s.opt.Now()) {
			var err error
			pool.Without(&s.mu, func() { err = s.lease.Verify(context.Background()) })
			if err != nil {
				s.reclaiming = false
				return
			}
			continue
		}
		f.removing = true
		path := f.path
		var gone bool
		pool.Without(&s.mu, func() { gone = f.unlink(s.fs, path) })
		if !gone {
			f.removing, f.stays = false, true
			continue
		}
		delete(s.files, f)
		delete(s.opened, f)
		for _, st := range f.recs {
			if st.records--; st.records == 0 {
				delete(s.names, st.key)
			}
		}
		if !f.gone { // Missing informs of those
			pool.Without(&s.mu, func() { s.indexGone(f, path) })
		}
		last := f.loaded // of the files that an earlier run left there
		for other := range s.files {
			last = last && !(other.loaded && other.id.Part() == f.id.Part())
		}
		if last {
			pool.Without(&s.mu, func() { s.lease.Drop(f.id.Part()) })
		}
	}
}

// unlink removes f, which has a name unless path is empty, and reports whether it
// is gone.
func (f *file) unlink(fs vfs.FS, path string) bool {
	if path != "" {
		if err := fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	f.close() // nothing in it is wanted, so its error means nothing
	return true
}

// names counts the records in f by name. The caller holds Store.mu.
func (f *file) names() map[*nameState]int {
	here := map[*nameState]int{}
	for _, st := range f.recs {
		here[st]++
	}
	return here
}

// finish writes what is buffered and seals the current segment, within
// CloseWait.
func (s *Store) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.opt.CloseWait)
	defer cancel()
	err := s.runWrite(ctx, nil)
	s.mu.Lock()
	f := s.current
	s.current = nil
	if f != nil {
		f.done = true
		f.users++
	}
	s.mu.Unlock()
	if f == nil {
		return err
	}
	var sealed error
	left := s.writes.Run(ctx, "seal", &pool.Job{}, func() {
		defer s.unuse(f)
		if sealed = f.appending.Acquire(ctx); sealed == nil {
			sealed = f.seal()
			s.noteSealed(f)
			f.appending.Release()
		}
	})
	var busy *pool.Busy
	if errors.As(left, &busy) {
		return errors.Join(err, left)
	}
	if left != nil {
		s.unuse(f)
	}
	return errors.Join(err, left, sealed)
}

// retire records that this run has ended, within CloseWait and if nothing of it
// is under way any more. Of one that left a file without a footer others find it out: they
// take such a file for damaged where a run ended in good order.
func (s *Store) retire() error {
	s.mu.Lock()
	idle, used := s.jobs == 0, false
	for f := range s.files {
		used = used || idle && !f.loaded && f.path != ""
		idle = idle && (!f.own || f.loaded || f.path == "" || f.gone || f.sealed)
	}
	s.mu.Unlock()
	if !idle {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opt.CloseWait)
	defer cancel()
	return s.writes.Run(ctx, "close of the token", &pool.Job{}, func() { s.lease.Retire(used) })
}
