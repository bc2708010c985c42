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

// New watches fs for a store with so many readers and writers.
func New(fs vfs.FS, now func() time.Time, readers, writers int) *FS {
	w := &FS{now: now, b: newBreaker(readers, writers)}
	w.FS = vfs.Hooked(fs, w.watch)
	return w
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
// success means nothing.
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

// IsAway reports whether err means that a server cannot be reached.
func IsAway(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.ESHUTDOWN, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENODEV,
	}, func(e error) bool { return errors.Is(err, e) })
}

// watch makes an operation between reporting its begin and its end to the breaker.
// Names are not watched, and only writes ask for the space.
func (w *FS) watch(c vfs.Call, do func(int64) error) error {
	run := func() error { return do(c.Len) }
	var file *circuit // of a read
	switch c.Op {
	case vfs.OpRemove, vfs.OpMkdir, vfs.OpRmdir, vfs.OpClose:
		return run()
	case vfs.OpReadDir:
		return w.sparing(run)
	}
	w.mu.Lock()
	switch c.Op {
	case vfs.OpOpen, vfs.OpRead, vfs.OpSize:
		file = w.b.file(strings.TrimSuffix(c.Path, ".tmp")) // it is kept when the file gets its name
		if r := w.b.mayRead(file, c.Path, w.now()); r != nil {
			w.mu.Unlock()
			return r
		}
	}
	f := w.b.begin(file, w.now(), c.Len)
	w.mu.Unlock()
	var err error
	if c.Op == vfs.OpOpen || c.Op == vfs.OpCreate {
		err = w.sparing(run)
	} else {
		err = run()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.end(file, f, w.now(), judge(c.Op, err))
	return err
}

const (
	// When the process may open no more and no file of the store is idle, an open is
	// tried again, for something else may be closed.
	filesTries = 40
	filesPause = 20 * time.Millisecond
)

// sparing calls open, and again while the process may open no more files and some
// can be closed or may be soon.
func (w *FS) sparing(open func() error) error {
	err := open()
	for try := 0; (errors.Is(err, vfs.ErrNoFiles) || errors.Is(err, vfs.ErrNoMore)) && try < filesTries; try++ {
		if w.Spare == nil || !w.Spare() {
			time.Sleep(filesPause)
		}
		err = open()
	}
	return err
}
