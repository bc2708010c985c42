package segment

import (
	"errors"
	"fmt"
	"os"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/handles"
)

// A process may have few descriptors, and a store has many files. So a file that
// nobody reads is closed when others are to be opened, the one that was used longest
// ago first, and opened again when it is read. The file that takes frames stays open
// until it is sealed.

const (
	// fewestFiles is the least that Options.MaxOpenFiles can come to.
	fewestFiles = 8
)

// shareFiles divides MaxOpenFiles: a half for files of the index that are kept
// open, a quarter each for those of others and for what is under way.
func shareFiles(o *Options) {
	if o.MaxOpenFiles <= 0 {
		return
	}
	o.MaxOpenFiles = max(o.MaxOpenFiles, fewestFiles)
	o.Readers = min(o.Readers, o.MaxOpenFiles/4)
	o.OpenFiles = min(o.OpenFiles, o.MaxOpenFiles/4)
}

// lent is an open file until it is given back.
type lent struct {
	vfs.File
	file    *file           // of the index, or
	handle  *handles.Handle // of handles
	handles *handles.Cache
}

// back ends the use of a file; failed: a read of it did.
func (l lent) back(failed bool) {
	if l.file != nil {
		l.file.reads.Add(-1)
	} else {
		l.handles.Give(l.handle, failed)
	}
}

// open lends the file for reading, and opens it if need be. It may take as long as
// the file system. The caller counts among the users.
func (f *file) open(s *Store) (lent, error) {
	f.handleMu.Lock()
	defer f.handleMu.Unlock()
	if f.handle == nil {
		s.makeRoom()
		h, err := s.fs.Open(f.path)
		if err != nil {
			return lent{}, err
		}
		if err := f.verifySame(h); err != nil {
			return lent{}, errors.Join(err, h.Close())
		}
		f.handle, f.onlyRead = h, true
		s.isOpen(f)
	}
	f.reads.Add(1)
	f.used.Store(s.uses.Add(1))
	return lent{File: f.handle, file: f}, nil
}

// know remembers which file a handle is of.
func (f *file) know(h vfs.File) {
	st, err := vfs.StatOf(h)
	f.stat, f.known = st, err == nil
}

// verifySame makes sure that what was opened is the file that was open before: the
// same one by number, or, where a file system gives new numbers, one whose header is
// the same.
func (f *file) verifySame(h vfs.File) error {
	if !f.known {
		f.know(h)
		return nil
	}
	st, err := vfs.StatOf(h)
	if err != nil || st.Same(f.stat) {
		return err
	}
	sc := format.Scanner{File: h}
	if err := sc.Begin(f.id); err != nil {
		return fmt.Errorf("%w: another file is in its place: %w", os.ErrNotExist, err)
	}
	f.stat = st
	return nil
}

// makeRoom closes idle files until one more may be open.
func (s *Store) makeRoom() {
	if s.opt.MaxOpenFiles == 0 {
		return
	}
	for s.openFiles() >= s.opt.MaxOpenFiles/2 && s.closeIdle() {
	}
}

// closeIdle closes the file of the index that was used longest ago, of those that
// nobody uses, and reports whether there was one.
func (x *index) closeIdle() bool {
	handles := x.takeIdle()
	for _, h := range handles {
		// It was only read since all in it was made durable, or given up.
		_ = h.Close()
	}
	return len(handles) > 0
}

// giveUp takes the handles from a file, if nobody uses them: a writer has them
// without asking for as long as it counts among the users. The caller holds
// Store.mu, and so does not wait here.
func (f *file) giveUp() ([]vfs.File, bool) {
	if !f.handleMu.TryLock() {
		return nil, false
	}
	defer f.handleMu.Unlock()
	if f.reads.Load() > 0 || !f.onlyRead && f.users > 0 {
		return nil, false
	}
	handles := f.takeHandles()
	return handles, len(handles) > 0
}

// takeHandles takes the handles from a file that is neither read nor written. The caller
// holds handleMu.
func (f *file) takeHandles() (handles []vfs.File) {
	for _, h := range []vfs.File{f.handle, f.stale} {
		if h != nil {
			handles = append(handles, h)
		}
	}
	f.handle, f.stale = nil, nil
	return handles
}
