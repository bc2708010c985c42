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

// Hook makes an operation by calling do, with how many bytes a read or write
// moves, c.Len for all, or leaves it, and returns what becomes of it.
type Hook func(c Call, do func(bytes int64) error) error

// Hooked returns fs with fn around each of its operations. Hints and questions
// about a file are none.
func Hooked(fs FS, fn Hook) FS { return hooked{fs, fn} }

// Before returns a Hook that asks first. With a nil error the operation goes
// ahead. Otherwise it fails with err, a read or write after its first partial
// bytes; a file is closed all the same.
func Before(ask func(Call) (partial int64, err error)) Hook {
	return func(c Call, do func(int64) error) error {
		partial, err := ask(c)
		switch {
		case err == nil:
			return do(c.Len)
		case c.Op == OpRead, c.Op == OpWrite, c.Op == OpClose:
			_ = do(min(partial, c.Len)) // err is what the caller gets
		}
		return err
	}
}

type hooked struct {
	FS
	hook Hook
}

type hookedFile struct {
	File
	path string
	hook Hook
}

// around makes an operation that has a result. do gets how many bytes a read or
// write moves.
func around[T any](h Hook, c Call, do func(bytes int64) (T, error)) (result T, err error) {
	err = h(c, func(bytes int64) error {
		result, err = do(bytes)
		return err
	})
	return result, err
}

func (h hooked) file(c Call, open func(int64) (File, error)) (File, error) {
	f, err := around(h.hook, c, open)
	if err != nil {
		return nil, err
	}
	return &hookedFile{f, c.Path, h.hook}, nil
}

func (h hooked) Create(path string, perm uint32) (File, error) {
	return h.file(Call{Op: OpCreate, Path: path}, func(int64) (File, error) { return h.FS.Create(path, perm) })
}

func (h hooked) Open(path string) (File, error) {
	return h.file(Call{Op: OpOpen, Path: path}, func(int64) (File, error) { return h.FS.Open(path) })
}

func (h hooked) Reopen(path string) (File, error) {
	return h.file(Call{Op: OpOpen, Path: path}, func(int64) (File, error) { return h.FS.Reopen(path) })
}

func (h hooked) Rename(from, to string) error {
	return h.hook(Call{Op: OpRename, Path: from, To: to}, func(int64) error { return h.FS.Rename(from, to) })
}

func (h hooked) Remove(path string) error {
	return h.hook(Call{Op: OpRemove, Path: path}, func(int64) error { return h.FS.Remove(path) })
}

func (h hooked) Mkdir(path string, perm uint32) error {
	return h.hook(Call{Op: OpMkdir, Path: path}, func(int64) error { return h.FS.Mkdir(path, perm) })
}

func (h hooked) Rmdir(path string) error {
	return h.hook(Call{Op: OpRmdir, Path: path}, func(int64) error { return h.FS.Rmdir(path) })
}

func (h hooked) ReadDir(path string) ([]string, error) {
	return around(h.hook, Call{Op: OpReadDir, Path: path}, func(int64) ([]string, error) { return h.FS.ReadDir(path) })
}

func (h hooked) Statfs(path string) (Space, error) {
	return around(h.hook, Call{Op: OpStatfs, Path: path}, func(int64) (Space, error) { return h.FS.Statfs(path) })
}

func (f *hookedFile) Pread(p []byte, off int64) (int, error) {
	c := Call{Op: OpRead, Path: f.path, Off: off, Len: int64(len(p))}
	return around(f.hook, c, func(bytes int64) (int, error) { return f.File.Pread(p[:bytes], off) })
}

// Preadv implements Vectored: the hook is called once for all of bufs.
func (f *hookedFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	c := Call{Op: OpRead, Path: f.path, Off: off, Len: Length(bufs)}
	return around(f.hook, c, func(bytes int64) (int64, error) { return Preadv(ctx, f.File, head(bufs, bytes), off) })
}

// SetDirect implements Director where the wrapped file does.
func (f *hookedFile) SetDirect() (Alignment, error) {
	return SetDirect(f.File)
}

// Forget implements Forgetter.
func (f *hookedFile) Forget(off, n int64) error { return Forget(f.File, off, n) }

func (f *hookedFile) Pwrite(p []byte, off int64) (int, error) {
	n, err := f.Pwritev([][]byte{p}, off)
	return int(n), err
}

func (f *hookedFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	c := Call{Op: OpWrite, Path: f.path, Off: off, Len: Length(bufs)}
	return around(f.hook, c, func(bytes int64) (int64, error) { return f.File.Pwritev(head(bufs, bytes), off) })
}

// head returns the first n bytes of bufs without changing it.
func head(bufs [][]byte, n int64) [][]byte {
	if n == Length(bufs) {
		return bufs
	}
	var out [][]byte
	for _, b := range bufs {
		k := min(n, int64(len(b)))
		out = append(out, b[:k])
		n -= k
	}
	return out
}

func (f *hookedFile) Sync() error {
	return f.hook(Call{Op: OpSync, Path: f.path}, func(int64) error { return f.File.Sync() })
}

func (f *hookedFile) Size() (int64, error) {
	return around(f.hook, Call{Op: OpSize, Path: f.path}, func(int64) (int64, error) { return f.File.Size() })
}

func (f *hookedFile) Close() error {
	return f.hook(Call{Op: OpClose, Path: f.path}, func(int64) error { return f.File.Close() })
}
