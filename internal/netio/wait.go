package netio

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/cpus"
	"cascadekv/internal/memlimit"
)

// maxThreads bounds the connections that wait in the kernel at once, each with a
// thread; those that wait by the poller have none. It is less where the kernel allows
// few threads (connectionThreads). ownThreads are more, for the server's own user on
// the unix socket.
const (
	maxThreads = 1024
	ownThreads = 64
)

// threadShare is the part of the threads that the kernel lets this process have
// which connections may hold. The rest is for file systems, the runtime, and other
// programs of the user: Go ends a program that cannot have another thread.
const threadShare = 4

// connectionThreads returns how many connections may wait in the kernel at once:
// maxThreads, or less where processes are limited.
func connectionThreads() int {
	limit := uint64(memlimit.Node{Root: "/"}.Tasks())
	var l unix.Rlimit
	// Root is exempt.
	if os.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil {
		limit = min(limit, l.Cur)
	}
	return int(min(max(limit/threadShare, 8), maxThreads))
}

var (
	threads      = make(chan struct{}, connectionThreads())
	threadsOfOwn = make(chan struct{}, min(ownThreads, cap(threads)))
)

// enter takes a thread to wait in the kernel with, if one is free; receiving from
// leave gives it back.
func (c *Conn) enter() (leave chan struct{}, ok bool) {
	select {
	case threads <- struct{}{}:
		return threads, true
	default:
	}
	if c.own {
		select {
		case threadsOfOwn <- struct{}{}:
			return threadsOfOwn, true
		default:
		}
	}
	return nil, false
}

// enterSoon is enter for those who send: who has a thread to send has it for
// moments.
func (c *Conn) enterSoon() (leave chan struct{}) {
	if leave, ok := c.enter(); ok {
		return leave
	}
	if c.own {
		select {
		case threads <- struct{}{}:
			return threads
		case threadsOfOwn <- struct{}{}:
			return threadsOfOwn
		}
	}
	threads <- struct{}{}
	return threads
}

// lingers waits a moment for what comes next; false when there is nothing.
func (c *Conn) lingers() bool {
	leave, ok := c.enter()
	if !ok {
		return false
	}
	defer func() { <-leave }()
	return c.pollTimed(linger)
}

// pollTimed is poll for those who would have liked to watch.
func (c *Conn) pollTimed(d time.Duration) bool {
	began := time.Now()
	came := c.poll(d)
	if came {
		c.spin.slept(&c.spinCredit, time.Since(began))
	}
	return came
}

// poll reports whether there is something to read, the end included, within d;
// or may be, where a signal came.
func (c *Conn) poll(d time.Duration) bool {
	if d <= linger && cpus.TryKeepPlace() {
		defer cpus.LeavePlace()
		return c.pollRaw(d)
	}
	fd, limit := c.readable(), unix.NsecToTimespec(d.Nanoseconds())
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

// pollRaw is poll unseen by Go's scheduler. The two calls stay apart:
// only in the arguments of a system call itself does a pointer keep its memory.
func (c *Conn) pollRaw(d time.Duration) bool {
	fd, limit := c.readable(), unix.NsecToTimespec(d.Nanoseconds())
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

func (c *Conn) readable() unix.PollFd { return unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN} }
