package region

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"cascadekv/internal/crc32c"
)

// MaxSize is the largest region, in bytes.
const MaxSize = 16 << 40

// Errors of this package beside ErrLayout.
var (
	// ErrUnsuitable means that a descriptor is no memory that can be shared.
	ErrUnsuitable = errors.New("region: not a region")

	// ErrLost means that a copy touched bytes that are no more.
	ErrLost = errors.New("region: memory is lost")
)

// Region is a client's memory, mapped. Its methods are safe for concurrent
// use, except Close, after which nothing of it may be used.
type Region struct{ mem []byte }

// AttachSize maps the first size bytes, all for 0, of the file that fd stands for.
// It takes fd over: whatever it returns, fd is closed, for the mapping outlives it.
// The error matches ErrUnsuitable for a file that must not be a region. What the file
// has lost of them, by having been truncated, is lost in the region.
func AttachSize(fd int, size int64) (*Region, error) {
	defer unix.Close(fd)
	whole, err := suitable(fd, size != 0)
	switch {
	case err != nil:
		return nil, err
	case size == 0:
		size = whole
	case size < 0 || size > MaxSize:
		return nil, fmt.Errorf("%w: %d bytes of it are asked for", ErrUnsuitable, size)
	}
	// Without MAP_NORESERVE the kernel would set huge pages aside that the
	// client did not ask for.
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("%w: map %d bytes for reading and writing: %w", ErrUnsuitable, size, err)
	}
	// A dump of this process is not to contain its clients' memory. It is a
	// hint: without it nothing fails.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	return &Region{mem: mem}, nil
}

// suitable returns the size of a file that may be a region: memory of the
// kernel's, of this process's own user, open for reading and writing. It may be
// empty if it was not before.
func suitable(fd int, before bool) (size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("region: %w", os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, fmt.Errorf("%w: it is no regular file (mode %#o)", ErrUnsuitable, st.Mode)
	}
	if int(st.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("%w: it belongs to uid %d, not to this rank's (%d)", ErrUnsuitable, st.Uid, os.Geteuid())
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, fmt.Errorf("region: %w", os.NewSyscallError("fstatfs", err))
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		return 0, fmt.Errorf("%w: it lies on a file system of type %#x, not in memory (tmpfs, hugetlbfs)", ErrUnsuitable, fs.Type)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, fmt.Errorf("region: %w", os.NewSyscallError("fcntl", err))
	}
	if flags&unix.O_ACCMODE != unix.O_RDWR || flags&unix.O_PATH != 0 {
		return 0, fmt.Errorf("%w: it is not open for reading and writing", ErrUnsuitable)
	}
	if st.Size < 1 && !before || st.Size > MaxSize {
		return 0, fmt.Errorf("%w: it has %d bytes, want 1 to %d", ErrUnsuitable, st.Size, int64(MaxSize))
	}
	return st.Size, nil
}

// Size is the region's length in bytes, as of its attachment.
func (r *Region) Size() int64 { return int64(len(r.mem)) }

// Close unmaps the region.
func (r *Region) Close() error {
	err := unix.Munmap(r.mem)
	r.mem = nil
	if err != nil {
		return fmt.Errorf("region: %w", os.NewSyscallError("munmap", err))
	}
	return nil
}

// Cursor copies the bytes of one block, in order. It belongs to one goroutine.
type Cursor struct {
	region *Region
	rest   []Extent
	done   int64 // of rest[0]
}

// Cursor returns a cursor at the first byte of a block of the region. extents
// are those of a Layout for its size.
func (r *Region) Cursor(extents []Extent) Cursor { return Cursor{region: r, rest: extents} }

// Read copies the next len(dst) bytes of the block out of the region, and
// returns the CRC32C of the bytes behind crc followed by them. The block must
// have as many. The error matches ErrLost; the cursor is of no use then.
func (c *Cursor) Read(crc uint32, dst []byte) (uint32, error) {
	for len(dst) > 0 {
		p := c.next(len(dst))
		var err error
		if crc, err = guarded(crc, dst[:len(p)], p); err != nil {
			return 0, err
		}
		dst = dst[len(p):]
	}
	return crc, nil
}

// Write copies src into the region, where the next bytes of the block belong.
// The rest is as with Read.
func (c *Cursor) Write(crc uint32, src []byte) (uint32, error) {
	for len(src) > 0 {
		p := c.next(len(src))
		var err error
		if crc, err = guarded(crc, p, src[:len(p)]); err != nil {
			return 0, err
		}
		src = src[len(p):]
	}
	return crc, nil
}

// next returns up to n of the bytes that follow and goes past them.
func (c *Cursor) next(n int) []byte {
	e := c.rest[0]
	at := e.Offset + c.done
	take := min(int64(n), e.Length-c.done)
	if c.done += take; c.done == e.Length {
		c.rest, c.done = c.rest[1:], 0
	}
	return c.region.mem[at : at+take]
}

// guarded copies src to dst, of the same length, and survives the signal that
// touching lost memory raises. Nothing else is done under its protection, so
// that nothing else is forgiven.
func guarded(crc uint32, dst, src []byte) (sum uint32, err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%w: %v", ErrLost, fault)
		}
	}()
	return crc32c.Copy(crc, dst, src), nil
}
