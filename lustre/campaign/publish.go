package campaign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// sink writes a file from its start on, in whole buffers.
type sink struct {
	f    vfs.File
	off  int64
	buf  []byte
	have int
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		k := copy(s.buf[s.have:], p[n:])
		s.have, n = s.have+k, n+k
		if s.have == len(s.buf) {
			if err := s.flush(); err != nil {
				return n, err
			}
		}
	}
	return len(p), nil
}

func (s *sink) flush() error {
	n, err := s.f.Pwrite(s.buf[:s.have], s.off)
	s.off, s.have = s.off+int64(n), 0
	return err
}

// Segments are made under a temporary name. It is not the one that ranks use:
// a rank that starts unlinks what an earlier run of it left under that.
const (
	tmpSuffix  = ".tmp"
	partSuffix = ".part"
)

// publish makes one sealed segment in dir, through buf. frames writes all of it
// but the footer, which it returns. The order is that of docs/format.md §1.1
// and of a rank that seals: frames under a temporary name, rename, the first
// fsync, and only then a footer, which readers trust. After an error nothing
// is left of the file, as far as the file system lets it be removed.
func (o *Options) publish(id format.FileID, buf []byte, frames func(w *sink) (footer []byte, err error)) (err error) {
	path := filepath.Join(o.Dir, id.Dir(), id.Name())
	name := path + partSuffix
	f, err := o.FS.Create(name, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			err = errors.Join(err, o.FS.Remove(name))
		}
	}()
	w := &sink{f: f, buf: buf}
	footer, err := frames(w)
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		return err
	}
	if err = o.FS.Rename(name, path); err != nil {
		return err
	}
	name = path
	if err = f.Sync(); err != nil {
		return err
	}
	if _, err = f.Pwrite(footer, w.off); err != nil {
		return err
	}
	return f.Sync()
}

// makeIncarnation makes a directory for new segments of a rank, with the number
// wanted or, if there is one of that number, the next that is free.
func (o *Options) makeIncarnation(rank uint32, want uint64) (format.FileID, error) {
	id := format.FileID{Rank: rank, Incarnation: want}
	for {
		err := o.FS.Mkdir(filepath.Join(o.Dir, id.Dir()), 0o700)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return id, err
		}
		if now := uint64(o.Now().UnixNano()); id.Incarnation < now {
			id.Incarnation = now
		} else {
			id.Incarnation++
		}
	}
}

// asidePath returns a name for a damaged file that is not taken.
func (o *Options) asidePath(path string) (string, error) {
	for n := 1; ; n++ {
		to := path + ".damaged"
		if n > 1 {
			to = fmt.Sprintf("%s.%d", to, n)
		}
		_, err := o.Lstat(to)
		if errors.Is(err, os.ErrNotExist) {
			return to, nil
		}
		if err != nil {
			return "", err
		}
	}
}
