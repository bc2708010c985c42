package vfs

import (
	"context"
)

// Op names a kind of operation.
type Op string

// The operations a hook is asked about.
const (
	OpCreate  Op = "create"
	OpOpen    Op = "open"
	OpRename  Op = "rename"
	OpRemove  Op = "remove"
	OpMkdir   Op = "mkdir"
	OpRmdir   Op = "rmdir"
	OpReadDir Op = "readdir"
	OpStatfs  Op = "statfs"
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpSync    Op = "sync"
	OpSize    Op = "size"
	OpClose   Op = "close"
)

// Call is one operation as a hook sees it, before it happens.
type Call struct {
	Op   Op
	Path string
	To   string // of a rename
	Off  int64  // of a read or write
	Len  int64  // of a read or write
}

// hook answers a Call. With a nil error the operation goes ahead. Otherwise it
// fails with err, a read or write after its first partial bytes.
type hook func(Call) (partial int64, err error)

type hooked struct {
	FS
	ask hook
}

type hookedFile struct {
	File
	path string
	ask  hook
}

// asked does what the hook lets go ahead.
func asked[T any](ask hook, c Call, do func() (T, error)) (result T, err error) {
	if _, err := ask(c); err != nil {
		return result, err
	}
	return do()
}

// do is asked for what has no result but its error.
func (h hook) do(c Call, do func() error) error {
	_, err := asked(h, c, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (h hooked) file(c Call, open func() (File, error)) (File, error) {
	f, err := asked(h.ask, c, open)
	if err != nil {
		return nil, err
	}
	return &hookedFile{f, c.Path, h.ask}, nil
}

func (h hooked) Create(path string, perm uint32) (File, error) {
	return h.file(Call{Op: OpCreate, Path: path}, func() (File, error) { return h.FS.Create(path, perm) })
}

func (h hooked) Open(path string) (File, error) {
	return h.file(Call{Op: OpOpen, Path: path}, func() (File, error) { return h.FS.Open(path) })
}

func (h hooked) Rename(from, to string) error {
	return h.ask.do(Call{Op: OpRename, Path: from, To: to}, func() error { return h.FS.Rename(from, to) })
}

func (h hooked) Remove(path string) error {
	return h.ask.do(Call{Op: OpRemove, Path: path}, func() error { return h.FS.Remove(path) })
}

func (h hooked) Mkdir(path string, perm uint32) error {
	return h.ask.do(Call{Op: OpMkdir, Path: path}, func() error { return h.FS.Mkdir(path, perm) })
}

func (h hooked) Rmdir(path string) error {
	return h.ask.do(Call{Op: OpRmdir, Path: path}, func() error { return h.FS.Rmdir(path) })
}

func (h hooked) ReadDir(path string) ([]string, error) {
	return asked(h.ask, Call{Op: OpReadDir, Path: path}, func() ([]string, error) { return h.FS.ReadDir(path) })
}

func (h hooked) Statfs(path string) (Space, error) {
	return asked(h.ask, Call{Op: OpStatfs, Path: path}, func() (Space, error) { return h.FS.Statfs(path) })
}

func (f *hookedFile) Pread(p []byte, off int64) (int, error) {
	partial, err := f.ask(Call{Op: OpRead, Path: f.path, Off: off, Len: int64(len(p))})
	if err == nil {
		return f.File.Pread(p, off)
	}
	n, _ := f.File.Pread(p[:min(partial, int64(len(p)))], off)
	return n, err
}

// Preadv implements Vectored: the hook is asked once for all of bufs.
func (f *hookedFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	partial, err := f.ask(Call{Op: OpRead, Path: f.path, Off: off, Len: Length(bufs)})
	if err == nil {
		return Preadv(ctx, f.File, bufs, off)
	}
	n, _ := Preadv(ctx, f.File, head(bufs, partial), off)
	return n, err
}

// SetDirect implements Director where the wrapped file does. It is no
// operation of its own: no hook is asked.
func (f *hookedFile) SetDirect() (Alignment, error) {
	return SetDirect(f.File)
}

// Forget implements Forgetter. A hint is no operation: no hook is asked.
func (f *hookedFile) Forget(off, n int64) error { return Forget(f.File, off, n) }

func (f *hookedFile) Pwrite(p []byte, off int64) (int, error) {
	n, err := f.Pwritev([][]byte{p}, off)
	return int(n), err
}

func (f *hookedFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	partial, err := f.ask(Call{Op: OpWrite, Path: f.path, Off: off, Len: Length(bufs)})
	if err == nil {
		return f.File.Pwritev(bufs, off)
	}
	n, _ := f.File.Pwritev(head(bufs, partial), off)
	return n, err
}

// head returns the first n bytes of bufs without changing it.
func head(bufs [][]byte, n int64) [][]byte {
	var out [][]byte
	for _, b := range bufs {
		k := min(n, int64(len(b)))
		out = append(out, b[:k])
		n -= k
	}
	return out
}

func (f *hookedFile) Sync() error { return f.ask.do(Call{Op: OpSync, Path: f.path}, f.File.Sync) }

func (f *hookedFile) Size() (int64, error) {
	return asked(f.ask, Call{Op: OpSize, Path: f.path}, f.File.Size)
}

func (f *hookedFile) Close() error {
	_, err := f.ask(Call{Op: OpClose, Path: f.path})
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}
