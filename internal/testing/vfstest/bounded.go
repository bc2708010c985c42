package vfstest

import (
	"os"
	"sync"

	"cascadekv/internal/vfs"
)

// Bounded is an FS of which files take no more than so many bytes: what goes
// beyond fails with ErrNoSpace, after the bytes that fit. An unlinked file takes
// none. It knows the files that are made through it. It is safe for concurrent
// use. Make one with NewBounded.
type Bounded struct {
	vfs.FS
	total int64

	mu    sync.Mutex
	used  int64
	files map[string]*int64 // sizes, by the names that files had and have
}

// NewBounded wraps fs with room for total bytes.
func NewBounded(fs vfs.FS, total int64) *Bounded {
	b := &Bounded{total: total, files: map[string]*int64{}}
	b.FS = vfs.Hooked(fs, vfs.Before(b.note))
	return b
}

// Used returns the bytes of all files.
func (b *Bounded) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Statfs implements FS.
func (b *Bounded) Statfs(path string) (vfs.Space, error) {
	s, err := b.FS.Statfs(path)
	s.Total, s.Free = b.total, b.total-b.Used()
	return s, err
}

// note accounts for c as if it succeeded.
func (b *Bounded) note(c vfs.Call) (partial int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := b.files[c.Path]
	switch {
	case c.Op == vfs.OpCreate:
		b.files[c.Path] = new(int64)
	case size == nil:
	case c.Op == vfs.OpRename:
		b.files[c.To] = size // what was opened under the old name goes on with it
	case c.Op == vfs.OpRemove:
		b.used -= *size
		*size = 0
		delete(b.files, c.Path)
	case c.Op == vfs.OpWrite:
		fits := min(c.Off+c.Len, *size+b.total-b.used)
		b.used += max(fits-*size, 0)
		*size = max(*size, fits)
		if fits < c.Off+c.Len {
			return max(fits-c.Off, 0), &os.PathError{Op: string(c.Op), Path: c.Path, Err: vfs.ErrNoSpace}
		}
	}
	return 0, nil
}
