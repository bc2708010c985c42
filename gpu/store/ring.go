package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"cascadekv/internal/crc32c"
	"cascadekv/internal/vfs"
)

// Transfer is the way of one object between memory and a container: Tutti's
// IOCTX.
type Transfer struct {
	Container int
	Offset    int64
	Memory    []Entry

	CRC uint32 // CRC32C of the bytes that were moved, set by the Ring
	Err error  // set by the Ring
}

// Ring moves bytes. Its methods return when nothing touches the memory of the batch any
// more, however long that takes; a transfer that has not begun when ctx ends need not. What follows
// an object up to the next page is the ring's to write. They may be called at the same time.
type Ring interface {
	// Add gives it a container more, before the first transfer of that. It returns soon.
	Add(number int, f vfs.File)

	Read(ctx context.Context, batch []Transfer)
	Write(ctx context.Context, batch []Transfer)
}

// Bytes returns the memory at an address, n bytes, for the process to touch; nil
// where there is none.
type Bytes func(addr uint64, n int64) []byte

// hostRing moves bytes with pread and pwrite, by a few goroutines for each batch.
type hostRing struct {
	files   []vfs.File
	bytes   Bytes
	workers int
}

// NewHostRing returns a Ring for memory that this process can touch.
func NewHostRing(files []vfs.File, bytes Bytes, workers int) Ring {
	return &hostRing{slices.Clone(files), bytes, max(workers, 1)}
}

// Add implements Ring. No transfer uses that file before.
func (r *hostRing) Add(number int, f vfs.File) { r.files[number] = f }

func (r *hostRing) Read(ctx context.Context, batch []Transfer)  { r.each(ctx, batch, r.read) }
func (r *hostRing) Write(ctx context.Context, batch []Transfer) { r.each(ctx, batch, r.write) }

// each calls move for each transfer.
func (r *hostRing) each(ctx context.Context, batch []Transfer, move func(context.Context, vfs.File, [][]byte, *Transfer) error) {
	var next atomic.Int64
	work := func() {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(batch) {
				return
			}
			t := &batch[i]
			if t.Err = context.Cause(ctx); t.Err != nil {
				continue
			}
			bufs, err := r.buffers(t.Memory)
			if err == nil {
				err = move(ctx, r.files[t.Container], bufs, t)
			}
			t.Err = err
		}
	}
	var all sync.WaitGroup
	for range min(r.workers, len(batch)) - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
}

func (r *hostRing) buffers(memory []Entry) ([][]byte, error) {
	bufs := make([][]byte, len(memory))
	for i, e := range memory {
		if bufs[i] = r.bytes(e.Addr, int64(e.Len)); len(bufs[i]) != int(e.Len) {
			return nil, fmt.Errorf("%w: the host has no %d bytes at %#x", ErrMemory, e.Len, e.Addr)
		}
	}
	return bufs, nil
}

func (r *hostRing) read(ctx context.Context, f vfs.File, bufs [][]byte, t *Transfer) error {
	at := t.Offset
	t.CRC = 0
	for _, b := range bufs {
		if _, err := f.Pread(b, at); err != nil {
			return err
		}
		t.CRC, at = crc32c.Update(t.CRC, b), at+int64(len(b))
	}
	return nil
}

// padding is what fills the last page of an object.
var padding [page]byte

// write writes whole pages, as O_DIRECT wants them.
func (r *hostRing) write(_ context.Context, f vfs.File, bufs [][]byte, t *Transfer) error {
	want := int64(0)
	t.CRC = 0
	for _, b := range bufs {
		t.CRC, want = crc32c.Update(t.CRC, b), want+int64(len(b))
	}
	if n := -want & (page - 1); n > 0 {
		bufs, want = append(bufs, padding[:n]), want+n
	}
	n, err := f.Pwritev(bufs, t.Offset)
	if err == nil && n != want {
		err = fmt.Errorf("wrote %d of %d bytes", n, want)
	}
	return err
}

var errIncomplete = errors.New("not all of its objects were written")
