package layout

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Advice is a hint to the servers about a range of a file.
type Advice uint16

// What servers can be told.
const (
	WillRead Advice = 1 // read the range into the servers' memory
	DontNeed Advice = 2 // drop it from there
)

const (
	adviceMagic = 0x1ADF1CE0
	adviceHead  = 32
	adviceSize  = 32
)

// Advise gives the servers a hint about length bytes from off on of an open
// file; 0 goes to the end. It pays before a burst of reads from disks, and
// costs a message to each server of the range. An error says only that there
// is nobody to advise; ErrNoHints on other file systems and where the servers
// cannot (those on ZFS).
func Advise(fd int, a Advice, off, length int64) error {
	b := encodeAdvice(a, off, length)
	err := retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocAdvise, uintptr(unsafe.Pointer(&b[0])))
		if errno != 0 {
			return errno
		}
		return nil
	})
	return hinted("advise", err)
}

func encodeAdvice(a Advice, off, length int64) []byte {
	end := uint64(off + length)
	if length <= 0 {
		end = eofEnd
	}
	b := make([]byte, adviceHead+adviceSize)
	le.PutUint32(b, adviceMagic)
	le.PutUint32(b[4:], 1)
	le.PutUint16(b[adviceHead:], uint16(a))
	le.PutUint64(b[adviceHead+8:], uint64(off))
	le.PutUint64(b[adviceHead+16:], end)
	return b
}

// GroupLock takes a lock on the whole file that all descriptors with the same
// group, any number but 0, hold together, and waits until no other group holds
// it (EAGAIN instead on a descriptor with O_NONBLOCK). Everybody without the
// lock then waits, so it is for several writers of one file only; a segment has
// one writer and needs none. Errors match ErrNoHints or the kernel's.
func GroupLock(fd int, group int) error {
	return hinted("group lock", retry(func() error { return unix.IoctlSetInt(fd, iocGroupLock, group) }))
}

// GroupUnlock gives back what GroupLock took on the same descriptor.
func GroupUnlock(fd int, group int) error {
	return hinted("group unlock", retry(func() error { return unix.IoctlSetInt(fd, iocGroupUnlock, group) }))
}

func hinted(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case isUnstriped(err):
		return fmt.Errorf("%w: %s: %w", ErrNoHints, what, err)
	}
	return fmt.Errorf("layout: %s: %w", what, err)
}
