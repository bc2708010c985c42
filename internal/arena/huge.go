package arena

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is what the kernel can map by one entry of its tables instead of 512,
// in bytes. A copy of a block then meets a few translations that the CPU does
// not have at hand, and not hundreds. Where huge pages are larger (arm64 with
// pages of 64 KiB) there are none for us.
const hugePage = 2 << 20

// reservation is address space that begins with a mapping at a multiple of
// hugePage; what lies before and behind is nobody's.
type reservation struct {
	at     unsafe.Pointer
	length uintptr
}

// mapAligned maps size bytes of a file, or anonymous memory for fd -1, where
// huge pages can be: a file's bytes must lie at the same place of a huge page in
// the file and in memory, which the kernel by itself does not see to.
func mapAligned(fd int, size int64, flags int) ([]byte, reservation, error) {
	r := reservation{length: uintptr(size) + hugePage}
	var err error
	if r.at, err = unix.MmapPtr(-1, 0, nil, r.length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, r, err
	}
	start := unsafe.Add(r.at, -uintptr(r.at)%hugePage)
	if _, err := unix.MmapPtr(fd, 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED); err != nil {
		return nil, r, errors.Join(err, r.release())
	}
	return unsafe.Slice((*byte)(start), size), r, nil
}

func (r reservation) release() error { return unix.MunmapPtr(r.at, r.length) }

// Huge has anonymous memory in [off, off+n) come in huge pages where it is touched, as
// far as the kernel has any: a touch costs less, and takes 2 MiB.
func (m *Mapping) Huge(off, n int64) { _ = unix.Madvise(m.mem[off:off+n], unix.MADV_HUGEPAGE) }

// enlarge has the kernel use huge pages for what lies around [off, off+n), as
// far as it has any. Contents stay, and others may read and write meanwhile.
//
// For a file it says so by MADV_COLLAPSE (Linux 6.1), which needs no right and no
// mount option, unlike huge pages at the first touch: sites leave /dev/shm at
// "huge=never". A huge page that is not there yet comes out of it whole and
// zeroed, at a tenth of the cost of touching its 512 pages one by one.
func (m *Mapping) enlarge(off, n int64) {
	if m.file == nil {
		m.Huge(off, n)
		return
	}
	for at := off / hugePage * hugePage; at < off+n && at+hugePage <= int64(len(m.mem)); at += hugePage {
		if unix.Fallocate(m.Fd(), 0, at, Page) != nil { // of nothing at all none is made
			return
		}
		err := unix.Madvise(m.mem[at:at+hugePage], unix.MADV_COLLAPSE)
		switch {
		case err == nil:
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY): // somebody, a device for one, has a page of it in hand
		default: // the kernel has no free one, or does not know how, or the file system is full
			return
		}
	}
}

// hugeBytes is how much of the mapping this process reaches through huge pages.
// The kernel walks all of its pages to find out.
func (m *Mapping) hugeBytes() (n int64, err error) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("arena: %w", err)
	}
	defer f.Close()
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.mem))))
	mine := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasSuffix(name, ":") { // the first line of the next mapping
			start, _, _ := strings.Cut(name, "-")
			at, err := strconv.ParseUint(start, 16, 64)
			if err != nil {
				return 0, fmt.Errorf("arena: /proc/self/smaps: %w", err)
			}
			mine = first <= at && at < first+uint64(len(m.mem))
		} else if mine && (name == "ShmemPmdMapped:" || name == "AnonHugePages:") {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("arena: /proc/self/smaps: %w", err)
			}
			n += kib << 10
		}
	}
	return n, lines.Err()
}

// ErrNoHugePages is that of TryHugePages where there are none.
var ErrNoHugePages = errors.New("no huge pages")

// TryHugePages reports whether an arena in dir would lie in huge pages. It takes
// the space of one for a moment. Errors: ErrNoHugePages, ErrNoShare, those of
// the file system.
func TryHugePages(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("arena: a file in %s: %w", dir, err)
	}
	m := &Mapping{file: os.NewFile(uintptr(fd), dir)}
	if err := m.file.Truncate(hugePage); err != nil {
		return errors.Join(err, m.file.Close())
	}
	if err := m.mapFile(hugePage); err != nil {
		return errors.Join(err, m.file.Close())
	}
	defer m.Close()
	if err := m.Commit(0, hugePage); err != nil {
		return err
	}
	if n, err := m.hugeBytes(); err != nil || n > 0 {
		return err
	}
	return fmt.Errorf("arena: files in %s: %w", dir, ErrNoHugePages)
}
