package region

import (
	"encoding/binary"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring adds 1 to an eventfd of a client, unless that is full: its reader has enough to wake for. It never waits where the kernel has AIO: a client can have a write to
// its eventfd block, for ever, whatever was asked before, for it shares the counter and the flags of the file. So the kernel signals the
// eventfd at the end of an I/O that does nothing. It is safe for concurrent use.
func Ring(eventfd int) {
	fds := [1]unix.PollFd{{Fd: int32(eventfd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds[:], 0); n != 1 || err != nil || fds[0].Revents&unix.POLLOUT == 0 {
		return
	}
	if b := theBell(); b == nil || !b.signal(eventfd) {
		count(eventfd)
	}
}

// theBell is that of the process, nil if there is none.
var theBell = sync.OnceValue(newBell)

// bell is the kernel's AIO, and a file to read nothing from.
type bell struct {
	mu   sync.Mutex
	aio  uintptr
	null int
}

// aioSlots is how many ends of I/Os the kernel keeps; each is taken at once.
const aioSlots = 8

// iocb is struct iocb of linux/aio_abi.h: of zeros, but for these, it is a read (IOCB_CMD_PREAD) of 0 bytes.
type iocb struct {
	_       [20]byte
	file    uint32
	_       [4]uint64
	flags   uint32
	eventfd uint32
}

// flagEventfd is IOCB_FLAG_RESFD.
const flagEventfd = 1

func newBell() *bell {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	b := &bell{null: null}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioSlots, uintptr(unsafe.Pointer(&b.aio)), 0); errno != 0 {
		_ = unix.Close(null)
		return nil
	}
	return b
}

// signal has the kernel read 0 bytes and add 1 to the eventfd when that has ended. It reports whether the kernel took the read.
func (b *bell) signal(eventfd int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	var pinned runtime.Pinner
	defer pinned.Unpin()
	read := &iocb{file: uint32(b.null), flags: flagEventfd, eventfd: uint32(eventfd)}
	pinned.Pin(read)
	n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, b.aio, 1, uintptr(unsafe.Pointer(&read)))
	if errno != 0 || n != 1 {
		return false
	}
	var ends [aioSlots][4]uint64 // struct io_event
	var noTime unix.Timespec
	_, _, _ = unix.Syscall6(unix.SYS_IO_GETEVENTS, b.aio, 0, aioSlots, uintptr(unsafe.Pointer(&ends)), uintptr(unsafe.Pointer(&noTime)), 0)
	return true
}

// count adds 1 to an eventfd by a write, which waits if the client has just made it full, and one that waits.
func count(eventfd int) { _, _ = unix.Write(eventfd, binary.NativeEndian.AppendUint64(nil, 1)) }
