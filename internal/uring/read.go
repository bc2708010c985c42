package uring

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxBuffers is the kernel's limit on buffers of one read. Those that lie one
// right behind the other count as one.
const MaxBuffers = 1024

// Readv reads once from fd at off into bufs, one behind the other, like
// preadv(2): it may read less than asked, and returns 0 at the end of the file.
// It waits for a slot when as many reads as the ring has are under way. When it
// returns, bufs are the caller's again. The end of ctx cancels the read if the
// kernel can still do so; Readv returns when it has ended either way. Errors:
// ctx's, ErrClosed, the errno.
func (r *Ring) Readv(ctx context.Context, fd int, bufs [][]byte, off int64) (int, error) {
	op := &operation{bufs: bufs, vec: make([]unix.Iovec, 0, len(bufs))}
	for _, b := range bufs {
		op.add(b)
	}
	if len(op.vec) == 0 {
		return 0, nil
	}
	if len(op.vec) > MaxBuffers || off < 0 {
		return 0, fmt.Errorf("uring: %w: %d buffers, at most %d; offset %d", unix.EINVAL, len(op.vec), MaxBuffers, off)
	}
	for again := 0; ; again++ {
		if err := r.once(ctx, fd, op, off); err != nil {
			return 0, err
		}
		n, retry, err := verdict(op.res, ctx.Err(), again)
		if !retry {
			return n, err
		}
	}
}

// add appends a buffer to what op reads. One that lies right behind the last is
// read as more of that: a disk moves one long run faster than many pieces.
func (op *operation) add(b []byte) {
	if len(b) == 0 {
		return
	}
	start := unsafe.SliceData(b)
	if n := len(op.vec); n > 0 {
		last := &op.vec[n-1]
		if uintptr(unsafe.Pointer(last.Base))+uintptr(last.Len) == uintptr(unsafe.Pointer(start)) {
			last.SetLen(int(last.Len) + len(b))
			return
		}
	}
	v := unix.Iovec{Base: start}
	v.SetLen(len(b))
	op.vec = append(op.vec, v)
}

// verdict decides what a read's result means: bytes, an error, or that it is
// handed in again. ended is the context's error. The kernel also cancels the
// reads of a thread that ends, which has nothing to do with the goroutine that
// began them.
func verdict(res int32, ended error, again int) (n int, retry bool, err error) {
	if res >= 0 {
		return int(res), false, nil
	}
	errno := unix.Errno(-res)
	cancelled := errno == unix.ECANCELED || errno == unix.EINTR
	if cancelled && ended != nil {
		return 0, false, ended
	}
	if (cancelled || errno == unix.EAGAIN) && again < maxAgain {
		return 0, true, nil
	}
	return 0, false, errno
}

// once hands op in and waits until it has ended.
func (r *Ring) once(ctx context.Context, fd int, op *operation, off int64) error {
	var slot uint32
	select {
	case <-r.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	select {
	case slot = <-r.slots:
	case <-r.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.start(fd, op, off, slot); err != nil {
		r.slots <- slot
		return err
	}
	select {
	case <-op.done:
		return nil
	case <-ctx.Done():
	}
	for pause := range pauses {
		r.mu.Lock()
		if r.ops[slot] == op { // else it has ended, and the queues may be gone
			r.cancelLocked(slot)
			r.ringLocked()
		}
		r.mu.Unlock()
		select {
		case <-op.done:
			return nil
		case <-time.After(pause):
		}
	}
	return nil
}

// pauses yields, without end, how long to wait for what was cancelled before it is
// cancelled again: the kernel does not find a read that is just passing from one of
// its threads into a queue of those that wait.
func pauses(yield func(time.Duration) bool) {
	for d := time.Millisecond; yield(d); d = min(2*d, time.Second) {
	}
}

// start has op submitted in a slot that its caller has taken.
func (r *Ring) start(fd int, op *operation, off int64, slot uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return ErrClosed
	}
	if !r.sq.push(submission{
		opcode: opReadv, flags: submissionAsync, fd: int32(fd), off: uint64(off), user: uint64(slot),
		addr: uint64(uintptr(unsafe.Pointer(&op.vec[0]))), len: uint32(len(op.vec)),
	}) {
		return fmt.Errorf("uring: submit a read: %w", unix.EBUSY) // full of what the kernel refused
	}
	op.done = make(chan struct{})
	r.ops[slot] = op
	r.running++
	r.ringLocked()
	return nil
}
