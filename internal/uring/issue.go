package uring

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ring tells the issuer that there is something to hand over, or that all is
// over. Who calls it holds mu and knows that a read is under way or that Close
// has only begun, or is the reaper: else the descriptor could be another's.
func (r *Ring) ring() {
	for {
		if _, err := unix.Write(r.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != unix.EINTR {
			return // the counter cannot be full: the issuer empties it at once
		}
	}
}

// issue hands submissions to the kernel, all from one thread that does nothing
// else. The kernel lets the thread that handed a read over finish it. A thread
// of Go's may by then be in a write that hangs, and would hold up reads of
// servers that answer.
func (r *Ring) issue() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.over)
	var count [8]byte
	for {
		_, _ = unix.Read(r.bell, count[:]) // interrupted when a read has ended
		if r.flush() {
			return
		}
	}
}

// flush hands over all that waits, and tells whether all is over.
func (r *Ring) flush() (over bool) {
	for again := 0; ; {
		r.mu.Lock()
		n, over := r.sq.waiting(), r.ended
		r.mu.Unlock()
		if over || n == 0 {
			return over
		}
		_, err := enter(r.fd, n, 0, 0)
		switch {
		case err == nil:
			again = 0
		case !passes(err) || again == maxAgain:
			r.refuse(err)
			return false
		default:
			again++
			time.Sleep(time.Duration(again) * time.Microsecond)
		}
	}
}

// refuse ends the reads that the kernel did not take with an error. Their places
// in the queue become operations that do nothing.
func (r *Ring) refuse(err error) {
	errno := unix.EIO
	errors.As(err, &errno)
	var refused []completion
	r.mu.Lock()
	r.sq.each(func(s *submission) {
		if s.opcode == opReadv {
			refused = append(refused, completion{user: s.user, res: -int32(errno)})
			*s = submission{opcode: opNop, user: userCancel}
		}
	})
	r.mu.Unlock()
	for _, c := range refused {
		r.complete(c)
	}
}
