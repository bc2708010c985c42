package breaker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// IsRefused reports whether an operation was not tried.
func IsRefused(err error) bool {
	_, refused := errors.AsType[*Refusal](err)
	return refused
}

// FS is a file system that asks a breaker before each read and reports to it what
// became of reads and writes. Writes are not refused here, where a refusal would
// poison a segment: a put asks before it begins.
type FS struct {
	vfs.FS
	now func() time.Time

	Spare func() bool // closes a file that nobody uses; set once, before the first open

	mu sync.Mutex
	b  *breaker
}

type watchedFile struct {
	vfs.File
	w    *FS
	path string
	c    *circuit
}

// New watches fs for a store with so many readers and writers.
func New(fs vfs.FS, now func() time.Time, readers, writers int) *FS {
	return &FS{FS: fs, now: now, b: newBreaker(readers, writers)}
}

// MayWrite returns an error when a write should not begin.
func (w *FS) MayWrite() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.b.mayWrite(w.now()); r != nil {
		return r
	}
	return nil
}

// Health fills in what the breaker sees: Hanging, Files, Writes, Breaks and Refused.
func (w *FS) Health() tiers.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.health(w.now())
}

// judge distinguishes an answer of the file system from silence. Names are another
// server's business than bytes, and a write can end in the page cache: their
// success says nothing.
func judge(op vfs.Op, err error) outcome {
	if err == nil && (op == vfs.OpStatfs || op == vfs.OpCreate || op == vfs.OpOpen || op == vfs.OpRename || op == vfs.OpWrite) {
		return unknown
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cancelled
	}
	if errors.Is(err, vfs.ErrIO) || errors.Is(err, vfs.ErrStale) || IsAway(err) {
		return silent
	}
	return answered
}

// IsAway reports whether err says that a server cannot be reached.
func IsAway(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ESHUTDOWN, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENODEV,
	}, func(e error) bool { return errors.Is(err, e) })
}

// read makes one read of c.
func (w *FS) read(c *circuit, op vfs.Op, path string, n int64, do func() error) error {
	w.mu.Lock()
	if r := w.b.mayRead(c, path, w.now()); r != nil {
		w.mu.Unlock()
		return r
	}
	return w.run(c, op, n, do)
}

func (w *FS) write(op vfs.Op, n int64, do func() error) error {
	w.mu.Lock()
	return w.run(nil, op, n, do)
}

// run makes an operation between telling the breaker of its begin and its end.
// The caller holds w.mu; it returns without.
func (w *FS) run(c *circuit, op vfs.Op, n int64, do func() error) error {
	f := w.b.begin(c, w.now(), n)
	w.mu.Unlock()
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.end(c, f, w.now(), judge(op, err))
	return err
}

// circuit returns that of a file, which keeps it when it gets its name.
func (w *FS) circuit(path string) *circuit {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.file(strings.TrimSuffix(path, ".tmp"))
}

// Create implements vfs.FS.
func (w *FS) Create(path string, perm uint32) (f vfs.File, err error) {
	err = w.write(vfs.OpCreate, 0, func() error {
		return w.sparing(func() error {
			f, err = w.FS.Create(path, perm)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return &watchedFile{f, w, path, w.circuit(path)}, nil
}

// Open implements vfs.FS.
func (w *FS) Open(path string) (f vfs.File, err error) {
	c := w.circuit(path)
	err = w.read(c, vfs.OpOpen, path, 0, func() error {
		return w.sparing(func() error {
			f, err = w.FS.Open(path)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return &watchedFile{f, w, path, c}, nil
}

// Rename implements vfs.FS.
func (w *FS) Rename(from, to string) error {
	return w.write(vfs.OpRename, 0, func() error { return w.FS.Rename(from, to) })
}

// Statfs implements vfs.FS. Only writes ask for it.
func (w *FS) Statfs(path string) (s vfs.Space, err error) {
	err = w.write(vfs.OpStatfs, 0, func() error {
		s, err = w.FS.Statfs(path)
		return err
	})
	return s, err
}

// Pread implements vfs.File.
func (f *watchedFile) Pread(p []byte, off int64) (n int, err error) {
	err = f.w.read(f.c, vfs.OpRead, f.path, int64(len(p)), func() error {
		n, err = f.File.Pread(p, off)
		return err
	})
	return n, err
}

// Preadv implements vfs.Vectored.
func (f *watchedFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (n int64, err error) {
	err = f.w.read(f.c, vfs.OpRead, f.path, vfs.Length(bufs), func() error {
		n, err = vfs.Preadv(ctx, f.File, bufs, off)
		return err
	})
	return n, err
}

// Size implements vfs.File.
func (f *watchedFile) Size() (n int64, err error) {
	err = f.w.read(f.c, vfs.OpSize, f.path, 0, func() error {
		n, err = f.File.Size()
		return err
	})
	return n, err
}

// Pwrite implements vfs.File.
func (f *watchedFile) Pwrite(p []byte, off int64) (n int, err error) {
	err = f.w.write(vfs.OpWrite, int64(len(p)), func() error {
		n, err = f.File.Pwrite(p, off)
		return err
	})
	return n, err
}

// Pwritev implements vfs.File.
func (f *watchedFile) Pwritev(bufs [][]byte, off int64) (n int64, err error) {
	err = f.w.write(vfs.OpWrite, vfs.Length(bufs), func() error {
		n, err = f.File.Pwritev(bufs, off)
		return err
	})
	return n, err
}

// Sync implements vfs.File.
func (f *watchedFile) Sync() error { return f.w.write(vfs.OpSync, 0, f.File.Sync) }

// SetDirect implements vfs.Director where the file does.
func (f *watchedFile) SetDirect() (vfs.Alignment, error) { return vfs.SetDirect(f.File) }

// Stat implements vfs.Stater where the file does.
func (f *watchedFile) Stat() (vfs.Stat, error) { return vfs.StatOf(f.File) }

// Forget implements vfs.Forgetter.
func (f *watchedFile) Forget(off, n int64) error { return vfs.Forget(f.File, off, n) }

const (
	// When the process may open no more and no file of the store is idle, an open is
	// tried again, for something else may be closed.
	filesTries = 40
	filesPause = 20 * time.Millisecond
)

// noFiles reports whether err says that no more files can be open.
func noFiles(err error) bool {
	return errors.Is(err, vfs.ErrNoFiles) || errors.Is(err, vfs.ErrNoMore)
}

// sparing calls open, and again while the process may open no more files and some
// can be closed or may be soon.
func (w *FS) sparing(open func() error) error {
	err := open()
	for try := 0; noFiles(err) && try < filesTries; try++ {
		if w.Spare == nil || !w.Spare() {
			time.Sleep(filesPause)
		}
		err = open()
	}
	return err
}

// ReadDir implements vfs.FS.
func (w *FS) ReadDir(path string) (names []string, err error) {
	err = w.sparing(func() error {
		names, err = w.FS.ReadDir(path)
		return err
	})
	return names, err
}
