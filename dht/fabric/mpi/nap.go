//go:build mpi

package mpi

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// napper lets one goroutine sleep for less than Go's timers can, and others
// wake it. It is a futex.
type napper struct {
	word    atomic.Uint32 // changes with each wake
	napping atomic.Bool
	bell    chan struct{} // ends a rest
	timer   *time.Timer   // of rests
}

func (n *napper) init() {
	n.bell = make(chan struct{}, 1)
	n.timer = time.NewTimer(time.Hour)
}

// rest is a longer nap that gives the scheduler its processor back. A nap keeps
// it, and when all are kept, the runtime takes them away from threads in C every
// 20 µs, which costs a caller that drives a fifth of its time.
func (n *napper) rest(d time.Duration) {
	n.timer.Reset(d)
	select {
	case <-n.bell:
	case <-n.timer.C:
	}
}

const (
	futexWait = 0 | 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	futexWake = 1 | 128
)

// nap sleeps for d, or until woken. If enough, asked when it is too late to
// miss a wake, is true, it returns at once.
func (n *napper) nap(d time.Duration, enough func() bool) {
	n.napping.Store(true)
	seen := n.word.Load()
	if !enough() {
		limit := unix.NsecToTimespec(int64(d))
		// Whatever it returns, the time is over, or somebody woke us, or it comes again.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&n.word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&limit)), 0, 0)
	}
	n.napping.Store(false)
}

// wake ends a nap or a rest, if there is one.
func (n *napper) wake() {
	select {
	case n.bell <- struct{}{}:
	default:
	}
	if !n.napping.Load() {
		return
	}
	n.word.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&n.word)), futexWake, 1, 0, 0, 0) // waking nobody is no error
}
