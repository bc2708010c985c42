package segment

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
)

// file is one segment. Fields below a mark are guarded by what it names.
type file struct {
	loaded bool // found by Recover, not written by this store

	// guarded by index.mu
	own       bool         // in a directory of this run's, so it may be unlinked
	read      int          // entries that were read, of a file that was loaded
	unsettled bool         // there may be more that a later run can count on
	unsealed  bool         // it had no footer when it was read: its writer may go on
	live      int          // indexed blocks
	liveBytes int64        // that they take
	putBytes  int64        // likewise of all that lie here
	tables    int64        // what the entries take in frames and footer, about
	users     int          // references and operations that need the handle
	done      bool         // gets no more frames
	removing  bool         // being unlinked
	gone      bool         // somebody removed it
	stays     bool         // could not be unlinked: the next incarnation may try
	recs      []*nameState // one for each name record in it
	size      int64
	overhead  int64 // of what a merge wrote: bytes beside its blocks, which to write anew frees nothing of
	spill     spillState

	// appending: one frame at a time
	appending pool.Lock
	w         format.Builder
	layouts   map[string]uint64 // namespaces with a LAYOUT in it, and its seq
	sealed    bool              // it has a footer

	openFile
	groupSync
}

// openFile is where a segment lies, and its handle while it has one.
type openFile struct {
	handleMu sync.Mutex // guards what follows
	id       format.FileID
	path     string
	handle   vfs.File
	onlyRead bool // handle was opened by open
	stat     vfs.Stat
	known    bool     // stat is the file's
	stale    vfs.File // replaced after ESTALE; readers may still be in it

	reads atomic.Int64  // of the handle, under way; it goes up with handleMu held
	used  atomic.Uint64 // when the last of them began, as index.uses counts
}

func newFile(own bool) *file {
	f := &file{own: own, appending: pool.NewLock(), layouts: map[string]uint64{}, spill: spillState{leastSeq: noSeq}}
	f.groupSync.init()
	return f
}

// syncTo returns when frame number n is durable, or cannot be trusted: see
// groupSync.syncWithin.
func (f *file) syncTo(n uint64) error { return f.syncWithin(context.Background(), n, f.fsync) }

func (f *file) fsync() error { return f.handle.Sync() }

// seal writes the footer. The caller holds f.appending and nothing is added
// afterwards. Recovery takes a footer's word for payloads, so it is written
// when all frames are durable. A failure loses nothing: recovery scans the
// frames instead.
func (f *file) seal() error {
	if f.w.Frames == 0 || f.poisoned() != nil {
		return nil
	}
	if err := f.syncTo(f.w.Frames - 1); err != nil {
		return err
	}
	footer := f.w.Footer(f.id)
	f.tables = 2 * int64(len(footer)) // each entry is in a frame as well
	f.w.Free()
	if _, err := f.handle.Pwrite(footer, f.w.Off); err != nil {
		return f.fail(err)
	}
	f.w.Off += int64(len(footer))
	f.wrote(f.w.Frames + 1) // counted like a frame, so that syncTo covers it
	err := f.syncTo(f.w.Frames)
	f.sealed = err == nil
	return err
}

// ident implements source.
func (f *file) ident() format.FileID { return f.id }

// where implements source.
func (f *file) where() string {
	f.handleMu.Lock()
	defer f.handleMu.Unlock()
	return f.path
}

// retain implements source.
func (f *file) retain(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users++
}

// release implements source.
func (f *file) release(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unuseLocked(f)
	s.idle.Broadcast()
}

// renew implements source: it replaces a handle that the file system calls stale,
// once, and never one that a writer uses.
func (f *file) renew(s *Store) error {
	f.handleMu.Lock()
	defer f.handleMu.Unlock()
	if f.handle == nil { // it was closed meanwhile, and the next read opens it
		return nil
	}
	if f.stale != nil || !f.onlyRead {
		return vfs.ErrStale
	}
	h, err := s.fs.Open(f.path)
	if err == nil {
		f.stale, f.handle = f.handle, h
	}
	return err
}

// close gives the handles back. Nobody may be using them.
func (f *file) close() error {
	f.handleMu.Lock()
	defer f.handleMu.Unlock()
	var err error
	for _, h := range []vfs.File{f.handle, f.stale} {
		if h != nil {
			err = errors.Join(err, h.Close())
		}
	}
	f.handle, f.stale = nil, nil
	return err
}

// create makes the file with everything in bufs, whose first page it fills, and
// gives it its final name.
func (f *file) create(fs vfs.FS, dir string, bufs [][]byte, l Layouter, created time.Time) error {
	path := filepath.Join(dir, f.id.Name())
	h, err := fs.Create(path+".tmp", 0o600)
	if err != nil {
		return err
	}
	head := format.Header{Created: created}
	if l != nil {
		head.Layout = l.Describe(path + ".tmp")
	}
	format.EncodeHeader(bufs[0], f.id, head)
	_, err = h.Pwritev(bufs, 0)
	if err == nil {
		err = fs.Rename(path+".tmp", path)
	}
	if err != nil {
		h.Close() // nothing was promised, so these errors change nothing
		fs.Remove(path + ".tmp")
		fs.Remove(path)
		return err
	}
	f.handleMu.Lock()
	defer f.handleMu.Unlock()
	f.path, f.handle = path, h
	f.know(h)
	return nil
}

// entriesOfBlock is how many entries a segment may have for each block that it may have.
const entriesOfBlock = 4

// isFull reports whether a frame of need bytes with so many blocks belongs into
// another segment. The caller holds f.appending.
func (f *file) isFull(o *Options, need int64, blocks int) bool {
	if f.w.Frames == 0 {
		return false
	}
	crowded := o.SegmentBlocks > 0 && (f.w.Blocks+blocks > o.SegmentBlocks || f.w.Entries/entriesOfBlock >= o.SegmentBlocks)
	return crowded || f.w.Off+need > o.SegmentBytes
}
