package uring

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// drive hands submissions to the kernel and takes completions until Close was
// called and nothing is under way, all from one thread that does nothing else.
// The kernel lets the thread that handed a read over finish it. A thread of Go's
// may by then be in a write that hangs, and would hold up reads of servers that
// answer.
func (r *Ring) drive() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.done)
	defer r.unmap()
	for again := 0; ; {
		n, wait, over := r.sleep()
		if over {
			return
		}
		_, err := enter(r.fd, n, wait, enterGetEvents)
		r.wake()
		for c, ok := r.cq.pop(); ok; c, ok = r.cq.pop() {
			r.complete(c)
		}
		switch {
		case err == nil || err == unix.EINTR:
			again = 0
		case passes(err) && again < maxAgain:
			again++
			time.Sleep(time.Duration(again) * time.Microsecond)
		default:
			r.refuse(err)
			again = 0
			time.Sleep(refused)
		}
	}
}

// refused is how long the driver rests when the kernel takes nothing.
const refused = time.Millisecond

// sleep makes the driver ready to wait in the kernel, for one completion and
// with n entries to hand over, or tells that all is over. It must not wait when
// there was no room in the queue to have it hear the bell.
func (r *Ring) sleep() (n, wait uint32, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing && r.running == 0 {
		return 0, 0, true
	}
	if !r.hears {
		r.hears = r.sq.push(submission{opcode: opPollAdd, fd: int32(r.bell), rw: unix.POLLIN, user: userBell})
	}
	if r.asleep = r.hears; r.asleep {
		wait = 1
	}
	return r.sq.waiting(), wait, false
}

func (r *Ring) wake() {
	r.mu.Lock()
	r.asleep = false
	r.mu.Unlock()
}

// ringLocked tells the driver that there is something to hand over, or that all
// is over, unless it looks by itself before it waits again. The caller holds mu
// and knows that a read is under way or that Close has only begun: else the
// descriptor could be another's.
func (r *Ring) ringLocked() {
	if !r.asleep {
		return
	}
	r.asleep = false
	for {
		if _, err := unix.Write(r.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != unix.EINTR {
			return // the counter cannot be full: the driver empties it each time
		}
	}
}

// heard makes the bell ready to be rung again.
func (r *Ring) heard() {
	var count [8]byte
	_, _ = unix.Read(r.bell, count[:]) // it does not wait; what it leaves makes the next poll end at once
	r.mu.Lock()
	r.hears = false
	r.mu.Unlock()
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
