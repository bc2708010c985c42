package uring

import (
	"errors"
	"runtime"
	"time"

	"cascadekv/internal/uring/abi"

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
		err := r.hand(n, wait)
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

// What the driver waits for.
type waiting uint8

const (
	nothing   waiting = iota
	completed         // one completion
	bell              // alone: a thread that waits for completions counts as one that waits for a disk
)

// hand hands n entries over and waits.
func (r *Ring) hand(n uint32, wait waiting) (err error) {
	switch wait {
	case bell:
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(r.bell), Events: unix.POLLIN}}, -1)
	case completed:
		_, err = abi.Enter(r.fd, n, 1, enterGetEvents)
	case nothing:
		_, err = abi.Enter(r.fd, n, 0, enterGetEvents)
	}
	return err
}

// refused is how long the driver rests when the kernel takes nothing.
const refused = time.Millisecond

// sleep returns how many entries the driver hands over and what it waits for, or that all
// is over. From then on it has to be woken for what is new. Without room in the queue
// to have the kernel wake it for that it must not wait.
func (r *Ring) sleep() (n uint32, wait waiting, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch idle := r.running == 0 && r.sq.waiting() == 0; {
	case idle && r.closing:
		return 0, nothing, true
	case idle:
		r.asleep = true
		return 0, bell, false
	}
	if !r.hears {
		r.hears = r.sq.push(submission{opcode: opPollAdd, fd: int32(r.bell), rw: unix.POLLIN, user: userBell})
	}
	if r.asleep = r.hears; r.asleep {
		wait = completed
	}
	return r.sq.waiting(), wait, false
}

func (r *Ring) wake() {
	r.mu.Lock()
	r.asleep = false
	r.mu.Unlock()
}

// ringLocked wakes the driver: there is something to hand over, or that all
// is over, unless it looks by itself before it waits again. While it sleeps it
// lives, and the bell is ours. The caller holds mu.
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
	var ended []completion
	r.mu.Lock()
	r.sq.each(func(s *submission) {
		if s.opcode == opReadv {
			ended = append(ended, completion{user: s.user, res: -int32(errno)})
			*s = submission{opcode: opNop, user: userCancel}
		}
	})
	r.mu.Unlock()
	for _, c := range ended {
		r.complete(c)
	}
}
