package region

import (
	"bytes"
	"cascadekv/internal/crc32c"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func memfd(t testing.TB, size int64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

// shared attaches a memfd of size bytes and returns a descriptor of it too.
func shared(t testing.TB, size int64) (*Region, int) {
	t.Helper()
	fd := memfd(t, size, 0)
	mine, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	r, err := AttachSize(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), unix.Close(mine)); err != nil {
			t.Error(err)
		}
	})
	return r, mine
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAttachRefuses(t *testing.T) {
	open := must[int](t)
	for name, fd := range map[string]func() int{
		"pipe": func() int {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			unix.Close(p[0])
			return p[1]
		},
		"socket":    func() int { return open(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)) },
		"device":    func() int { return open(unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)) },
		"eventfd":   func() int { return open(unix.Eventfd(0, 0)) },
		"folder":    func() int { return open(unix.Open(Root, unix.O_RDONLY|unix.O_DIRECTORY, 0)) },
		"of proc":   func() int { return open(unix.Open("/proc/self/comm", unix.O_RDWR, 0)) },
		"empty":     func() int { return memfd(t, 0, 0) },
		"too large": func() int { return memfd(t, MaxSize+1, 0) },
		"on disk": func() int {
			f, err := os.CreateTemp(".", "on-disk-*")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(f.Name()) })
			defer f.Close()
			if err := f.Truncate(4096); err != nil {
				t.Fatal(err)
			}
			return open(unix.Dup(int(f.Fd())))
		},
		"for reading only": func() int {
			fd := memfd(t, 4096, 0)
			defer unix.Close(fd)
			return open(unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY, 0))
		},
		"path only": func() int {
			fd := memfd(t, 4096, 0)
			defer unix.Close(fd)
			return open(unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_PATH, 0))
		},
		"sealed": func() int {
			fd := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
			open(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE))
			return fd
		},
		"of another user": func() int {
			if os.Geteuid() != 0 {
				t.Log("files of other users are tested as root only")
				return open(unix.Eventfd(0, 0))
			}
			fd := memfd(t, 4096, 0)
			if err := unix.Fchown(fd, 65534, 65534); err != nil {
				t.Fatal(err)
			}
			return fd
		},
	} {
		n := fd()
		if r, err := AttachSize(n, 0); !errors.Is(err, ErrUnsuitable) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		if _, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: the descriptor is left open", name)
		}
	}
	if _, err := AttachSize(-1, 0); err == nil {
		t.Error("no descriptor: attached")
	}
}

func TestOpenFollowsNothing(t *testing.T) {
	dir, err := os.MkdirTemp(Root, "cascade-region-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	inner := filepath.Join(dir, "inner")
	if err := errors.Join(
		os.Mkdir(inner, 0o700),
		os.WriteFile(filepath.Join(inner, "file"), make([]byte, 10), 0o600),
		os.Symlink("file", filepath.Join(inner, "link")),
		os.Symlink("inner", filepath.Join(dir, "linked")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		inner + "/file":                         nil,
		inner + "/link":                         ErrUnsuitable,
		dir + "/linked/file":                    ErrUnsuitable,
		inner + "/../inner/file":                ErrUnsuitable,
		inner + "//file":                        ErrUnsuitable,
		inner + "/./file":                       ErrUnsuitable,
		inner + "/absent":                       ErrUnsuitable,
		inner + "/file/more":                    ErrUnsuitable,
		inner + "/":                             ErrUnsuitable,
		inner:                                   ErrUnsuitable,
		dir + "/fifo":                           ErrUnsuitable,
		inner + "/file\x00":                     ErrUnsuitable,
		Root:                                    ErrUnsuitable,
		"":                                      ErrUnsuitable,
		"/dev/shm/../../etc":                    ErrUnsuitable,
		"/etc/passwd":                           ErrUnsuitable,
		Root + strings.Repeat("x/", 3000) + "y": ErrUnsuitable,
	} {
		fd, err := Open(path)
		if err == nil {
			var r *Region
			if r, err = AttachSize(fd, 0); err == nil {
				err = r.Close()
			}
		}
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%.80q: %v", path, err)
		}
	}
}

// Blocks of random layouts are written and read through cursors in random
// steps, and compared with a plain slice that is treated likewise.
func TestCursorsAgreeWithAModel(t *testing.T) {
	const size = 1 << 16
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r, _ := shared(t, size)
	model := make([]byte, size)
	for range 300 {
		var numbers []uint64
		each, blocks := 1+rng.IntN(5), 1+rng.IntN(4)
		for range each * blocks {
			offset := rng.IntN(size)
			numbers = append(numbers, uint64(offset), uint64(1+rng.IntN(min(5000, size-offset))))
		}
		l, err := ParseLayout(pairs(numbers...), blocks, size)
		if err != nil {
			t.Fatal(err)
		}
		i := rng.IntN(blocks)
		data := make([]byte, l.Size(i))
		write := rng.IntN(2) == 0
		if write {
			for k := range data {
				data[k] = byte(rng.Uint32())
			}
		}
		c := r.Cursor(l.Block(i))
		crc := uint32(0)
		for p := data; len(p) > 0; {
			step := p[:1+rng.IntN(len(p))]
			if write {
				crc, err = c.Write(crc, step)
			} else {
				crc, err = c.Read(crc, step)
			}
			if err != nil {
				t.Fatal(err)
			}
			p = p[len(step):]
		}
		if crc != crc32c.Checksum(data) {
			t.Fatal("the checksum is not that of the bytes")
		}
		for _, e := range l.Block(i) {
			if write {
				copy(model[e.Offset:e.Offset+e.Length], data)
			} else if !bytes.Equal(model[e.Offset:e.Offset+e.Length], data[:e.Length]) {
				t.Fatalf("read wrong bytes at %+v", e)
			}
			data = data[e.Length:]
		}
	}
	if !bytes.Equal(r.mem, model) {
		t.Error("the region differs from the model")
	}
}

func whole(r *Region) []Extent { return []Extent{{0, r.Size()}} }

// bothWays reads a whole region and writes it again.
func bothWays(r *Region, buf []byte) []error {
	read, write := r.Cursor(whole(r)), r.Cursor(whole(r))
	_, readErr := read.Read(0, buf)
	_, writeErr := write.Write(0, buf)
	return []error{readErr, writeErr}
}

func TestLostMemoryIsAnError(t *testing.T) {
	r, fd := shared(t, 1<<20)
	buf := make([]byte, 1<<20)
	both := func() []error { return bothWays(r, buf) }
	for _, err := range both() {
		if err != nil {
			t.Error(err)
		}
	}
	if err := unix.Ftruncate(fd, 512<<10); err != nil {
		t.Fatal(err)
	}
	for _, err := range both() {
		if !errors.Is(err, ErrLost) {
			t.Errorf("half of it is lost: %v", err)
		}
	}
	c := r.Cursor([]Extent{{0, 512 << 10}})
	if _, err := c.Read(0, buf[:512<<10]); err != nil {
		t.Errorf("the half that is left: %v", err)
	}
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, err := range both() {
		if err != nil {
			t.Errorf("it is back: %v", err)
		}
	}
}

func TestTruncationUnderCopies(t *testing.T) {
	r, fd := shared(t, 256<<10)
	var wg sync.WaitGroup
	var lost atomic.Int64
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			buf := make([]byte, r.Size())
			for {
				for _, err := range bothWays(r, buf) {
					if errors.Is(err, ErrLost) {
						lost.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := 0; lost.Load() < 500 && !t.Failed(); i++ {
		if err := unix.Ftruncate(fd, int64(i%2)*(256<<10)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestHugePagesThatAreNotThere(t *testing.T) {
	const page = 2 << 20
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("this kernel has no huge pages: %v", err)
	}
	if err := unix.Ftruncate(fd, 4<<30); err != nil {
		t.Fatal(err)
	}
	r, err := AttachSize(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// The system has fewer than 4 GiB of them free: some page is missing.
	for at := int64(0); at < r.Size(); at += page {
		c := r.Cursor([]Extent{{at, 1}})
		if _, err := c.Write(0, []byte{1}); errors.Is(err, ErrLost) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Skip("this machine has plenty of huge pages")
}

func TestNothingElseIsForgiven(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a cursor goes on behind the end of its block")
		}
	}()
	r, _ := shared(t, 4096)
	c := r.Cursor([]Extent{{0, 10}})
	_, _ = c.Read(0, make([]byte, 11))
}
