package vfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Direct is an FS whose files go past the page cache where they can. Reads may
// have any alignment, writes any memory: what the kernel does not take as it is
// passes through scratch memory. A write must start and end at multiples of
// Alignment.Offset, or it fails with EINVAL. A file that cannot go past the
// page cache is left as it is. Make one with NewDirect.
type Direct struct {
	FS
	scratch *Scratch
}

// bounceBytes is the scratch memory of one read or write: what a disk moves
// about as fast as anything larger.
const bounceBytes = 1 << 20

// NewDirect wraps fs. Close gives its scratch memory back.
func NewDirect(fs FS) *Direct { return &Direct{fs, NewScratch(bounceBytes, 8)} }

// Close unmaps scratch memory; files that are still open can be used on.
func (d *Direct) Close() { d.scratch.Close() }

// Create implements FS.
func (d *Direct) Create(path string, perm uint32) (File, error) {
	f, err := d.FS.Create(path, perm)
	return d.wrap(f), err
}

// Open implements FS.
func (d *Direct) Open(path string) (File, error) {
	f, err := d.FS.Open(path)
	return d.wrap(f), err
}

// Reopen implements FS.
func (d *Direct) Reopen(path string) (File, error) {
	f, err := d.FS.Reopen(path)
	return d.wrap(f), err
}

func (d *Direct) wrap(f File) File {
	a, err := SetDirect(f)
	if err != nil {
		return f
	}
	return &directFile{File: f, align: a, scratch: d.scratch}
}

// ProbeDirect finds out whether files can go past the page cache, and how they
// must be aligned then: it makes the file path, which must not exist yet,
// writes it, reads it back and removes it. A file system without room for that
// passes with its parameters. Errors: the errno, or
// errors.ErrUnsupported.
func ProbeDirect(fs FS, path string) (a Alignment, err error) {
	d := NewDirect(fs)
	defer d.Close()
	f, err := d.Create(path, 0o600)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, f.Close(), fs.Remove(path)) }()
	k, ok := f.(*directFile)
	if !ok {
		return a, pathErr("O_DIRECT", path, errors.ErrUnsupported)
	}
	mem, err := d.scratch.Get()
	if err != nil {
		return a, err
	}
	defer d.scratch.Put(mem)
	return k.align, k.probe(path, mem)
}

// probe writes a pattern and reads it back with memory that is aligned no
// better than promised.
func (d *directFile) probe(path string, mem []byte) error {
	n := 2 * max(d.align.Offset, os.Getpagesize())
	if d.align.Memory+2*n > len(mem) {
		return pathErr("O_DIRECT", path, fmt.Errorf("%w: alignment of %d bytes", errors.ErrUnsupported, d.align.Offset))
	}
	out, in := mem[:n], mem[n+d.align.Memory:][:n]
	for i := range out {
		out[i] = byte(i*7 + i>>8)
	}
	clear(in)
	if _, err := d.Pwrite(out, 0); errors.Is(err, ErrNoSpace) || errors.Is(err, ErrQuota) {
		return nil // that is no answer, and there may be room tomorrow
	} else if err != nil {
		return err
	}
	if _, err := d.Pread(in, 0); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return pathErr("O_DIRECT", path, fmt.Errorf("%w: other bytes came back than were written", errors.ErrUnsupported))
	}
	return nil
}

// directFile moves what is aligned straight from and to the caller's memory.
type directFile struct {
	File
	align   Alignment
	scratch *Scratch
}

// Pread implements File.
func (d *directFile) Pread(p []byte, off int64) (int, error) {
	n, err := d.Preadv(context.Background(), [][]byte{p}, off)
	return int(n), err
}

// Preadv implements Vectored.
func (d *directFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	end := off + Length(bufs)
	skip := off & int64(d.align.Offset-1) // bytes before off that must be read too
	left := cursor{bufs: bufs}
	for at := off; at < end; {
		t, err := d.transfer(&left, int(skip), d.align)
		if err != nil {
			return at - off, err
		}
		n, err := Preadv(ctx, d.File, t.vec, at-skip)
		got := min(n-skip, t.bytes)
		if errors.Is(err, io.ErrUnexpectedEOF) && got == t.bytes {
			err = nil // it ends behind what was wanted
		}
		t.scatter(got)
		t.release(d.scratch)
		if err != nil {
			return at - off + max(got, 0), err
		}
		at += t.bytes
		skip = 0
	}
	return end - off, nil
}

// Pwrite implements File.
func (d *directFile) Pwrite(p []byte, off int64) (int, error) {
	n, err := d.Pwritev([][]byte{p}, off)
	return int(n), err
}

// Pwritev implements File.
func (d *directFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	total := Length(bufs)
	if mask := int64(d.align.Offset - 1); off&mask != 0 || total&mask != 0 {
		return 0, pathErr("pwritev", "file opened with O_DIRECT",
			fmt.Errorf("%w: %d bytes at %d are not multiples of %d", unix.EINVAL, total, off, d.align.Offset))
	}
	shape := d.align.inPages(off, total)
	left := cursor{bufs: bufs}
	for at := off; at < off+total; {
		t, err := d.transfer(&left, 0, shape)
		if err != nil {
			return at - off, err
		}
		t.gather()
		n, err := d.File.Pwritev(t.vec, at)
		t.release(d.scratch)
		if err != nil {
			return at - off + n, err
		}
		at += t.bytes
	}
	return total, nil
}

// inPages is how the buffers of a write of n bytes at off are handed over: in
// whole pages, if the write consists of such. A disk may take less, but what
// begins or ends within a page becomes a request of its own there or, on a
// virtual one, a page that is read before it is written: to copy the ends is
// several times cheaper.
func (a Alignment) inPages(off, n int64) Alignment {
	page := os.Getpagesize()
	if (off|n)&int64(page-1) != 0 {
		return a
	}
	return Alignment{max(a.Memory, page), max(a.Offset, page)}
}

// cursor is a place in a list of buffers.
type cursor struct {
	bufs [][]byte
	used int // of the first buffer
}

// rest returns the unused part of the first buffer that has one.
func (c *cursor) rest() []byte {
	for len(c.bufs) > 0 && len(c.bufs[0]) == c.used {
		c.bufs, c.used = c.bufs[1:], 0
	}
	if len(c.bufs) == 0 {
		return nil
	}
	return c.bufs[0][c.used:]
}

// take uses up to n bytes of the first buffer.
func (c *cursor) take(n int) []byte {
	p := c.rest()
	p = p[:min(n, len(p))]
	c.used += len(p)
	return p
}

// transfer is one aligned call: what is handed to the kernel, and how the
// bytes in scratch memory belong to the caller's.
type transfer struct {
	vec     [][]byte
	bytes   int64  // of the caller
	scratch []byte // borrowed, nil when everything was aligned
	used    int    // of scratch
	links   []link
}

// link pairs bytes of the caller with their place in scratch memory. at is
// where they start in the transfer, counted in the caller's bytes.
type link struct {
	mem, scratch []byte
	at           int64
}

// transfer takes as much from left as fits one call, in buffers that are aligned
// as a says. The first skip bytes of the file belong to nobody.
func (d *directFile) transfer(left *cursor, skip int, a Alignment) (t transfer, err error) {
	unit := a.Offset
	t.vec = make([][]byte, 0, min(len(left.bufs)+1, maxVec)) // the last buffer may be cut in two
	for len(t.vec) < maxVec {
		p := left.rest()
		if p == nil {
			return t, nil
		}
		if skip == 0 && len(p) >= unit && a.takes(p) {
			p = left.take(len(p) &^ (unit - 1))
			t.vec = append(t.vec, p)
			t.bytes += int64(len(p))
			continue
		}
		if t.scratch == nil {
			if t.scratch, err = d.scratch.Get(); err != nil {
				return t, err
			}
		}
		if t.used+unit > len(t.scratch) {
			return t, nil
		}
		t.bounce(left, skip, a)
		skip = 0
	}
	return t, nil
}

// bounce moves units of the file to scratch memory until the caller's next
// buffer can be used itself.
func (t *transfer) bounce(left *cursor, skip int, a Alignment) {
	unit, start := a.Offset, t.used
	for t.used+unit <= len(t.scratch) {
		room := t.scratch[t.used+skip : t.used+unit]
		for len(room) > 0 && left.rest() != nil {
			p := left.take(len(room))
			t.links = append(t.links, link{p, room[:len(p)], t.bytes})
			t.bytes += int64(len(p))
			room = room[len(p):]
		}
		t.used += unit
		skip = 0
		if p := left.rest(); p == nil || len(p) >= unit && a.takes(p) {
			break
		}
	}
	t.vec = append(t.vec, t.scratch[start:t.used])
}

// scatter copies what was read to the caller, of whose bytes got arrived.
func (t *transfer) scatter(got int64) {
	for _, l := range t.links {
		if n := min(int64(len(l.mem)), got-l.at); n > 0 {
			copy(l.mem[:n], l.scratch)
		}
	}
}

// gather copies what is to be written from the caller.
func (t *transfer) gather() {
	for _, l := range t.links {
		copy(l.scratch, l.mem)
	}
}

func (t *transfer) release(s *Scratch) {
	if t.scratch != nil {
		s.Put(t.scratch)
	}
}

// takes reports whether a buffer may start where p does.
func (a Alignment) takes(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))&uintptr(a.Memory-1) == 0
}

// Forget implements Forgetter: nothing was cached.
func (d *directFile) Forget(int64, int64) error { return nil }
