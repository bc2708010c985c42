package arena

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of opening an arena file.
var (
	ErrInUse   = errors.New("arena file is in use by another process")
	ErrUnsafe  = errors.New("arena file is not safe to use")
	ErrNoShare = errors.New("not enough space for the arena")
)

// Mapping is memory that is mapped once and never moves. The methods are safe
// for concurrent use except Close, after which the memory must not be touched.
type Mapping struct {
	mem  []byte
	room reservation // that mem lies in
	file *os.File    // nil for anonymous memory; its name is the path
	old  bool        // the file was there with this size
	made bool        // this process made the file
}

// MapAnonymous maps size bytes of private memory that no other process sees. It
// becomes real where it is touched, or by Commit.
func MapAnonymous(size int64) (*Mapping, error) {
	mem, room, err := mapAligned(-1, size, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("arena: map %d bytes of anonymous memory: %w", size, err)
	}
	return &Mapping{mem: mem, room: room}, nil
}

// Admit decides what becomes of a file that is not empty, of oldSize bytes: it
// returns the size that the file is to have, or an error, which ends the opening
// and is returned. Where the two sizes differ, what the file holds is given up.
type Admit func(old io.ReaderAt, oldSize int64) (size int64, err error)

// MapFile maps the file at path, creating it with mode 0600 when there is none.
// It locks the file against other processes for as long as the mapping is open,
// and refuses symbolic links and files of other users. Space is not reserved:
// see Commit.
//
// A file that is not empty gets the size that admit returns, any other one size
// bytes. Whatever the error, what the file holds stays, and a file that was made
// is removed.
// Errors: ErrInUse, ErrUnsafe, ErrNoShare, those of admit.
func MapFile(path string, size int64, admit Admit) (*Mapping, error) {
	f, made, err := openLocked(path)
	if err != nil {
		return nil, err
	}
	return mapLocked(&Mapping{file: f, made: made}, size, admit)
}

// MapHandedOver is MapFile of a file that a process has open and locked already,
// such as this one before it became another program. It takes f over, whose name
// is to be the path that the file has or had. Errors: those of MapFile.
func MapHandedOver(f *os.File, size int64, admit Admit) (*Mapping, error) {
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	return mapLocked(&Mapping{file: f}, size, admit)
}

func mapLocked(m *Mapping, size int64, admit Admit) (*Mapping, error) {
	size, err := m.resize(size, admit)
	if err == nil {
		err = m.mapFile(size)
	}
	if err != nil {
		if m.made {
			err = errors.Join(err, m.Unlink())
		}
		m.file.Close()
		return nil, err
	}
	return m, nil
}

func (m *Mapping) mapFile(size int64) (err error) {
	if m.mem, m.room, err = mapAligned(m.Fd(), size, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("arena: map %s: %w", m.file.Name(), err)
	}
	// For kernels before 6.1, where /dev/shm is mounted "huge=advise"; see enlarge.
	_ = unix.Madvise(m.mem, unix.MADV_HUGEPAGE)
	return nil
}

// openLocked opens or makes the file at path; made: it was not there. A rank that
// ends may remove the file while its lock is waited for.
func openLocked(path string) (f *os.File, made bool, err error) {
	for range lockTries {
		if f, made, err = openOnce(path); err != nil {
			return nil, false, err
		}
		if isAt(f, path) {
			return f, made, nil
		}
		f.Close()
	}
	return nil, false, fmt.Errorf("arena: %s: %w: it is replaced again and again", path, ErrInUse)
}

func openOnce(path string) (f *os.File, made bool, err error) {
	const flags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Open(path, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
		made = err == nil
		if errors.Is(err, unix.EEXIST) { // it came meanwhile
			fd, err = unix.Open(path, flags, 0)
		}
	}
	if err != nil {
		return nil, false, describeOpen(path, err)
	}
	f = os.NewFile(uintptr(fd), path)
	if err = checkOwner(f); err == nil {
		err = lock(f)
	}
	if err != nil {
		f.Close()
		return nil, false, err
	}
	return f, made, nil
}

// describeOpen turns the error of an open into ErrUnsafe when something is at
// path that is no file of this user.
func describeOpen(path string, err error) error {
	if st, statErr := os.Lstat(path); statErr == nil && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("arena: open %s (%v): %w: %w; remove it or choose another name (--shm-path)", path, st.Mode(), ErrUnsafe, err)
	}
	return fmt.Errorf("arena: open %s: %w", path, err)
}

func checkOwner(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("arena: stat %s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("arena: %s (mode %#o, uid %d) must be a regular file of uid %d that nobody else can open: %w; remove it or choose another name (--shm-path)",
			f.Name(), st.Mode&0o7777, st.Uid, os.Geteuid(), ErrUnsafe)
	}
	return nil
}

// Lock attempts: IsLocked holds a lock for an instant, which must not be taken
// for a rank.
const (
	lockTries = 10
	lockPause = 10 * time.Millisecond
)

func lock(f *os.File) error {
	for try := 0; ; try++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("arena: lock %s: %w", f.Name(), err)
		case try == lockTries:
			return fmt.Errorf("arena: %s: %w; stop that daemon or give this one another rank or socket", f.Name(), ErrInUse)
		}
		time.Sleep(lockPause)
	}
}

// resize brings the file to size, or to what admit decides, and only when the
// file system has the room. It returns the size.
func (m *Mapping) resize(size int64, admit Admit) (int64, error) {
	var st unix.Stat_t
	path := m.file.Name()
	if err := unix.Fstat(m.Fd(), &st); err != nil {
		return 0, fmt.Errorf("arena: stat %s: %w", path, err)
	}
	if st.Size > 0 {
		var err error
		if size, err = admit(m.file, st.Size); err != nil {
			return 0, err
		}
	}
	if st.Size == size {
		m.old = true
		return size, nil
	}
	room, err := m.Room()
	if err != nil {
		return 0, err
	}
	// What the file itself takes comes back when it is emptied.
	if room = min(room, math.MaxInt64-st.Blocks*512) + st.Blocks*512; room < leastRoom(size) {
		return 0, fmt.Errorf("arena: %s needs %d bytes and %s has %d free: %w; ask for less (--shm-bytes) or free space there",
			path, size, filepath.Dir(path), room, ErrNoShare)
	}
	if err := m.file.Truncate(0); err != nil {
		return 0, fmt.Errorf("arena: empty %s: %w", path, err)
	}
	if err := m.file.Truncate(size); errors.Is(err, unix.EFBIG) {
		return 0, fmt.Errorf("arena: size %s: %w: %d bytes are more than files of this process may have; raise that limit (ulimit -f, LimitFSIZE= in a unit), or ask for less (--shm-bytes)", path, err, size)
	} else if err != nil {
		return 0, fmt.Errorf("arena: size %s: %w", path, err)
	}
	return size, nil
}

// leastRoom is the room in its file system that a new arena of size bytes needs
// at the start. It gets the rest by and by (Commit), as far as there is room. One
// that the memory of the node can not hold is a mistake, and needs all of it.
func leastRoom(size int64) int64 {
	const first = 8 << 20 // bytes, beside a tag for each page
	var node unix.Sysinfo_t
	if err := unix.Sysinfo(&node); err != nil || uint64(size) > uint64(node.Totalram)*uint64(node.Unit) {
		return size
	}
	return min(size, first+size/Page)
}

// Bytes is the whole mapping. It dies with Close.
func (m *Mapping) Bytes() []byte { return m.mem }

// Existed reports whether the file was there before, with the same size.
func (m *Mapping) Existed() bool { return m.old }

// Fd is the file's descriptor, or -1 for anonymous memory.
func (m *Mapping) Fd() int {
	if m.file == nil {
		return -1
	}
	return int(m.file.Fd())
}

// Room is how many bytes the file system of the file has free; of a tmpfs
// without a limit, and for anonymous memory, more than there can be.
func (m *Mapping) Room() (int64, error) {
	if m.file == nil {
		return math.MaxInt64, nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(m.Fd(), &fs); err != nil {
		return 0, fmt.Errorf("arena: statfs %s: %w", m.file.Name(), err)
	}
	if fs.Blocks == 0 {
		return math.MaxInt64, nil
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}

// Commit makes the bytes [off, off+n) real: their space is reserved, so that no
// later touch can raise SIGBUS, and their pages are mapped in, huge ones where
// the kernel has them; up to a huge page on either side may come with them.
// Contents stay.
// The error matches ErrNoShare when the file system is full.
func (m *Mapping) Commit(off, n int64) error {
	m.enlarge(off, n)
	if m.file != nil {
		if err := unix.Fallocate(m.Fd(), 0, off, n); errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("arena: reserve %d bytes at %d of %s: %w", n, off, m.file.Name(), ErrNoShare)
		} else if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("arena: reserve %d bytes at %d of %s: %w", n, off, m.file.Name(), err)
		}
	}
	err := unix.Madvise(m.mem[off:off+n], unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // kernels before 5.14 do not know it
		m.readEachPage(off, n)
		return nil
	} else if err != nil {
		return fmt.Errorf("arena: map in %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// Resident returns how many bytes of the mapping are in memory.
func (m *Mapping) Resident() (bytes int64, err error) {
	pages := make([]byte, (len(m.mem)+Page-1)/Page)
	if len(pages) == 0 {
		return 0, nil
	}
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m.mem[0])), uintptr(len(m.mem)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return 0, fmt.Errorf("arena: which pages are in memory: %w", errno)
	}
	for _, in := range pages {
		bytes += int64(in&1) * Page
	}
	return bytes, nil
}

// readEachPage maps pages in by reading them. Its result keeps the reads alive.
//
//go:noinline
func (m *Mapping) readEachPage(off, n int64) (sum byte) {
	for p := off; p < off+n; p += Page {
		sum += m.mem[p]
	}
	return sum
}

// Close unmaps the memory and unlocks the file, which stays.
func (m *Mapping) Close() error {
	err := m.room.release()
	m.mem = nil
	if m.file != nil {
		err = errors.Join(err, m.file.Close())
	}
	if err != nil {
		return fmt.Errorf("arena: close: %w", err)
	}
	return nil
}

// MapShared maps the first size bytes of an open file, for as long as the
// process lives: it is for memory that others reach by themselves, at moments
// that this process does not know of.
func MapShared(fd int, size int64) ([]byte, error) {
	mem, _, err := mapAligned(fd, size, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("arena: map %d bytes once more: %w", size, err)
	}
	return mem, nil
}
