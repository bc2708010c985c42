package arena

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedDir is a folder on the file system that arenas are on.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cascade-arena-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mapNew(t *testing.T, size int64) *Mapping {
	t.Helper()
	m, err := MapFile(filepath.Join(sharedDir(t), "a"), size, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// kernelCollapses skips a test where the kernel makes no huge pages of shared
// memory when asked to.
func kernelCollapses(t *testing.T) {
	t.Helper()
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, hugePage); err != nil {
		t.Fatal(err)
	}
	mem, room, err := mapAligned(fd, hugePage, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer room.release()
	mem[0] = 1
	if err := unix.Madvise(mem, unix.MADV_COLLAPSE); err != nil {
		t.Skipf("no huge pages of shared memory: MADV_COLLAPSE: %v; needs Linux 6.1 and 2 MiB of free memory in one piece", err)
	}
}

// TestHugePages: committed step by step, as tiers do, the whole of a file comes
// to lie in huge pages, but for a rest at its end; what was there stays.
func TestHugePages(t *testing.T) {
	kernelCollapses(t)
	const size, first, step = 4*hugePage + 7*Page, 3 * Page, hugePage + 5*Page
	m := mapNew(t, size)
	if err := m.Commit(0, first); err != nil {
		t.Fatal(err)
	}
	for i := range m.Bytes()[:first] {
		m.Bytes()[i] = byte(i % 251)
	}
	for off := int64(first); off < size; off += step {
		if err := m.Commit(off, min(step, size-off)); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range m.Bytes() {
		want := byte(i % 251)
		if i >= first {
			want = 0
		}
		if b != want {
			t.Fatalf("byte %d is %d, want %d", i, b, want)
		}
	}
	if got, err := m.hugeBytes(); err != nil || got != 4*hugePage {
		t.Errorf("%d bytes in huge pages (%v), want %d", got, err, 4*hugePage)
	}
}

// TestHugePagesUnderUse: pages become huge while others write to them, and none
// of what is written is lost.
func TestHugePagesUnderUse(t *testing.T) {
	kernelCollapses(t)
	const size = 8 * hugePage
	m := mapNew(t, size)
	other, err := MapShared(m.Fd(), size)
	if err != nil {
		t.Fatal(err)
	}
	for p := 0; p < size; p += Page { // small pages, as an earlier kernel or daemon left them
		other[p] = 1
	}
	stop, done := make(chan struct{}), make(chan byte)
	go func() {
		round := byte(1)
		for ; ; round++ {
			for p := 0; p < size; p += Page {
				if other[p] != round {
					t.Errorf("page %d holds %d in round %d", p/Page, other[p], round)
				}
				other[p] = round + 1
			}
			select {
			case <-stop:
				done <- round + 1
				return
			default:
			}
		}
	}()
	err = m.Commit(0, size)
	close(stop)
	last := <-done
	if err != nil {
		t.Fatal(err)
	}
	for p := 0; p < size; p += Page {
		if got := m.Bytes()[p]; got != last {
			t.Fatalf("page %d holds %d, want %d", p/Page, got, last)
		}
	}
}

// TestAlignment: wherever the kernel puts it, a mapping is where huge pages can
// be, and leaves nothing behind.
func TestAlignment(t *testing.T) {
	for _, size := range []int64{Page, hugePage - Page, hugePage, hugePage + Page} {
		m, err := MapAnonymous(size)
		if err != nil {
			t.Fatal(err)
		}
		if at := addressOf(m.Bytes()); at%hugePage != 0 || int64(len(m.Bytes())) != size {
			t.Errorf("%d bytes at %#x, want %d at a multiple of %#x", len(m.Bytes()), at, size, hugePage)
		}
		room := m.room
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(unsafe.Slice((*byte)(room.at), room.length), unix.MADV_NORMAL); err != unix.ENOMEM {
			t.Errorf("after Close, %d bytes: %v, want %v: nothing is mapped there", size, err, unix.ENOMEM)
		}
	}
}

func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
