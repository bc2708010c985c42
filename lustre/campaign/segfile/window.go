package segfile

import (
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// ahead is what a window reads when it is asked for less and the rest may not
// be wanted.
const ahead = 16 << 10

// window reads a file through one buffer, best in ascending order.
type window struct {
	f        vfs.File
	size     int64
	buf      []byte
	progress func(int64)

	start    int64
	have     int  // bytes of the file from start on that lie in buf
	straight bool // everything will be wanted: fill the buffer each time
}

// at returns n bytes at off, valid until the next call; n is at most the
// buffer's length. The range must lie in the file.
func (w *window) at(off, n int64) ([]byte, error) {
	if off < w.start || off+n > w.start+int64(w.have) {
		take := min(max(n, ahead), int64(len(w.buf)))
		if w.straight {
			take = int64(len(w.buf))
		}
		take = min(take, w.size-off)
		if n > take || off < 0 {
			return nil, format.Errorf("%d bytes at %d of a file of %d", n, off, w.size)
		}
		w.have = 0
		if _, err := w.f.Pread(w.buf[:take], off); err != nil {
			return nil, err
		}
		w.start, w.have = off, int(take)
		if w.progress != nil {
			w.progress(take)
		}
	}
	return w.buf[off-w.start : off-w.start+n], nil
}

// large returns n bytes at off: in the buffer if they fit, else in memory of
// their own. It is for tables, never for payloads.
func (w *window) large(off, n int64) ([]byte, error) {
	if n <= int64(len(w.buf)) {
		return w.at(off, n)
	}
	p := make([]byte, n)
	if _, err := w.f.Pread(p, off); err != nil {
		return nil, err
	}
	if w.progress != nil {
		w.progress(n)
	}
	return p, nil
}

// each calls fn with the bytes of a range, piece by piece.
func (w *window) each(off, n int64, fn func(p []byte)) error {
	for n > 0 {
		k := min(n, int64(len(w.buf)))
		if rest := w.start + int64(w.have) - off; off >= w.start && rest > 0 {
			k = min(k, rest) // what is in the buffer already
		}
		p, err := w.at(off, k)
		if err != nil {
			return err
		}
		fn(p)
		off, n = off+k, n-k
	}
	return nil
}
