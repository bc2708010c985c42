package tcp

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/cpus"
)

// Calls of the kernel that take no time, and waits for what comes in a moment, are made
// unseen by Go's scheduler: what it sees wakes the runtime's monitor in a process
// that was idle, and costs several times as much as a small message.

// moment is how long an answer is waited for in that way.
const moment = 2 * time.Millisecond

// awaits waits a moment until there is something to receive, the end included, or
// returns sooner, where a place in the scheduler can be kept; else it does not
// wait.
func awaits(fd int) {
	if !cpus.TryKeepPlace() {
		return
	}
	defer cpus.LeavePlace()
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	limit := unix.NsecToTimespec(moment.Nanoseconds())
	_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0) // who receives next will see what is wrong
}

// receiver is the reading side of a stream whose waits are Go's poller's. One goroutine
// uses it at a time.
type receiver struct {
	raw  syscall.RawConn
	once func(fd uintptr) bool // receive, made once so that no call makes it
	dst  []byte
	n    uintptr
	err  unix.Errno
}

// newReceiver returns conn's reading side, or conn where it has no descriptor.
func newReceiver(conn net.Conn) io.Reader {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return conn
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return conn
	}
	r := &receiver{raw: raw}
	r.once = r.receive
	return r
}

// Read implements io.Reader.
func (r *receiver) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.dst = p
	err := r.raw.Read(r.once)
	r.dst = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != 0:
		return 0, os.NewSyscallError("recv", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return int(r.n), nil
}

// receive receives what is there, and reports whether that is anything.
func (r *receiver) receive(fd uintptr) bool {
	for {
		r.n, _, r.err = unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&r.dst[0])), uintptr(len(r.dst)), unix.MSG_DONTWAIT, 0, 0)
		if r.err != unix.EINTR {
			return r.err != unix.EAGAIN
		}
	}
}
