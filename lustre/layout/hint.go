package layout

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	adviceMagic    = 0x1ADF1CE0
	adviceHead     = 32
	adviceSize     = 32
	adviceWillRead = 1
)

// Adviser announces to the servers what will be read soon of segments
// (segment.Adviser).
type Adviser struct{}

// WillRead has the servers of a file read n bytes from off on into their
// memory. It pays before many small reads from disks that turn, and costs a
// message to each server of the range. False where there are no hints: on other
// file systems, and where the servers have none (those on ZFS).
func (Adviser) WillRead(path string, off, n int64) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true // this file is gone, others are not
	}
	defer unix.Close(fd)
	return !errors.Is(advise(fd, adviceWillRead, off, n), ErrNoHints)
}

// advise gives a hint about length bytes from off on of an open file; 0 goes to
// the end. Errors match ErrNoHints or are the kernel's.
func advise(fd int, advice uint16, off, length int64) error {
	b := encodeAdvice(advice, off, length)
	err := retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocAdvise, uintptr(unsafe.Pointer(&b[0])))
		if errno != 0 {
			return errno
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case isUnstriped(err):
		return fmt.Errorf("%w: advise: %w", ErrNoHints, err)
	}
	return fmt.Errorf("layout: advise: %w", err)
}

func encodeAdvice(advice uint16, off, length int64) []byte {
	end := uint64(off + length)
	if length <= 0 {
		end = eofEnd
	}
	b := make([]byte, adviceHead+adviceSize)
	le.PutUint32(b, adviceMagic)
	le.PutUint32(b[4:], 1)
	le.PutUint16(b[adviceHead:], advice)
	le.PutUint64(b[adviceHead+8:], uint64(off))
	le.PutUint64(b[adviceHead+16:], end)
	return b
}
