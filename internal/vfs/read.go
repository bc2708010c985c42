package vfs

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// Vectored is implemented by files that fill several buffers with one call.
type Vectored interface {
	// Preadv fills bufs one behind the other from off on. It does not change
	// bufs itself. It returns io.ErrUnexpectedEOF when the file ends first;
	// when it fails, the first n bytes are right. When it returns, bufs are no
	// longer touched. The end of ctx is a wish to stop early: a call that is
	// in the kernel may not be able to.
	Preadv(ctx context.Context, bufs [][]byte, off int64) (n int64, err error)
}

// Readv reads once from fd at off into bufs, as preadv(2) does: at most 1024
// buffers, none of them empty; it may read less than asked and returns 0 at the
// end of the file. When it returns, bufs are no longer touched. Errors are an
// errno or ctx's.
type Readv func(ctx context.Context, fd int, bufs [][]byte, off int64) (int, error)

// Preadv fills bufs as Vectored says: with one call where f can, buffer by
// buffer otherwise.
func Preadv(ctx context.Context, f File, bufs [][]byte, off int64) (n int64, err error) {
	if v, ok := f.(Vectored); ok {
		return v.Preadv(ctx, bufs, off)
	}
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		k, err := f.Pread(b, off+n)
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func preadv(_ context.Context, fd int, bufs [][]byte, off int64) (int, error) {
	return unix.Preadv(fd, bufs, off)
}

// Preadv implements Vectored.
func (f *osFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	readv := f.readv
	if readv == nil || ctx.Done() == nil { // nobody can wish to stop: the plain call is the fastest
		readv = preadv
	}
	var n int64
	rest := append(make([][]byte, 0, len(bufs)), bufs...)
	for {
		vec, asked := nextVec(&rest)
		if len(vec) == 0 {
			return n, nil
		}
		k, err := readv(ctx, f.fd, vec, off+n)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return n, pathErr("preadv", f.path, err)
		case k == 0 || f.endsAfter(k, asked):
			return n + int64(k), pathErr("preadv", f.path, io.ErrUnexpectedEOF)
		}
		n += int64(k)
		rest = advance(rest, k)
	}
}

// nextVec drops empty buffers from rest and returns those for one call and how
// many bytes they have.
func nextVec(rest *[][]byte) (vec [][]byte, bytes int) {
	full := (*rest)[:0]
	for _, b := range *rest {
		if len(b) > 0 {
			full = append(full, b)
		}
	}
	*rest = full
	vec = full[:min(len(full), maxVec)]
	for _, b := range vec {
		bytes += len(b)
	}
	return vec, bytes
}

// endsAfter reports whether a read past the page cache that got k of asked
// bytes has met the end of the file: asking on from there would break the
// alignment.
func (f *osFile) endsAfter(k, asked int) bool {
	return k < asked && f.direct.Load() && k%sector != 0
}

// Alignment is what reads and writes past the page cache must be multiples of,
// in bytes: powers of two.
type Alignment struct {
	Memory int // the address of each buffer
	Offset int // the place in the file, and the length of each buffer
}

// sector is the least alignment that any disk has.
const sector = 512

// Director is implemented by files that can go past the page cache.
type Director interface {
	// SetDirect makes all later reads and writes of the file go past the page
	// cache, and reports how they must be aligned. Errors: the errno, or
	// errors.ErrUnsupported.
	SetDirect() (Alignment, error)
}

// SetDirect is f's SetDirect, where f has one.
func SetDirect(f File) (Alignment, error) {
	if d, ok := f.(Director); ok {
		return d.SetDirect()
	}
	return Alignment{}, errors.ErrUnsupported
}

// Length is how many bytes bufs have together.
func Length(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// SetDirect implements Director. Where the kernel does not report the alignment
// it is that of a page, which every file system takes.
func (f *osFile) SetDirect() (Alignment, error) {
	page := unix.Getpagesize()
	a := Alignment{page, page}
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_DIOALIGN, &st)
	})
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		if st.Dio_mem_align == 0 || st.Dio_offset_align == 0 {
			return a, pathErr("O_DIRECT", f.path, errors.ErrUnsupported)
		}
		// A sector at least: what is finer is new, and gains nothing here.
		a = Alignment{max(int(st.Dio_mem_align), sector), max(int(st.Dio_offset_align), sector)}
	}
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return a, pathErr("O_DIRECT", f.path, err)
	}
	f.direct.Store(true)
	return a, nil
}

// Forgetter is implemented by files that can advise the kernel what it need not
// cache.
type Forgetter interface {
	Forget(off, n int64) error
}

// Forget advises the kernel that bytes of f which were just read will not be
// read again soon, so that they do not take memory twice. It is a hint, and
// does nothing where f has no way to give it.
func Forget(f File, off, n int64) error {
	if k, ok := f.(Forgetter); ok && n > 0 {
		return k.Forget(off, n)
	}
	return nil
}

// Forget implements Forgetter. The kernel drops only whole pieces of its cache,
// of a page to 2 MiB.
func (f *osFile) Forget(off, n int64) error {
	return pathErr("fadvise", f.path, unix.Fadvise(f.fd, off, n, unix.FADV_DONTNEED))
}
