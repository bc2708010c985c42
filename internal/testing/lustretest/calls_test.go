package lustretest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What Lustre's calls do that lustre/segment does without, and of which a site's
// tools may make use beside it.

// newFile makes a file with these bytes.
func newFile(t *testing.T, path string, p []byte) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		_, err = f.WriteAt(p, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func wantContent(t *testing.T, what, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes of %d, the right ones: %v, %v", what, len(got), len(want), bytes.Equal(got, want), err)
	}
}

// TestRealCallsWork: calls that some file systems of clusters refuse, and this
// one does not.
func TestRealCallsWork(t *testing.T) {
	for _, c := range []struct {
		what string
		test func(t *testing.T, path string, f *os.File, p []byte)
	}{
		{"fallocate", allocates},
		{"holes", hasHoles},
		{"shared mmap", mapsShared},
		{"link", links},
		{"copy_file_range", copies},
		{"flock", locks},
		{"large attributes", largeAttributes},
	} {
		t.Run(c.what, func(t *testing.T) {
			path, p := filepath.Join(onLustre(t), "a"), bytes.Repeat([]byte("lustre"), 32<<10)
			c.test(t, path, newFile(t, path, p), p)
		})
	}
}

// allocates: room beyond the end with and without a new length, a hole and zeros
// within it.
func allocates(t *testing.T, path string, f *os.File, p []byte) {
	size, page := int64(len(p)), int64(4096)
	call := func(what string, mode uint32, off, n, length int64) {
		t.Helper()
		err := unix.Fallocate(int(f.Fd()), mode, off, n)
		st, statErr := f.Stat()
		if err != nil || statErr != nil || st.Size() != length {
			t.Errorf("%s: %v; length %v, %v, want %d", what, err, st, statErr, length)
		}
	}
	call("KEEP_SIZE", unix.FALLOC_FL_KEEP_SIZE, size, 1<<20, size)
	call("PUNCH_HOLE", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page, 4*page, size)
	clear(p[page : 5*page])
	call("ZERO_RANGE", unix.FALLOC_FL_ZERO_RANGE, 8*page, 2*page, size)
	clear(p[8*page : 10*page])
	forgetCaches(t)
	wantContent(t, "after fallocate", path, p)
	call("no flags", 0, size, page, size+page)
	forgetCaches(t)
	wantContent(t, "with a new length", path, append(p, make([]byte, page)...))
}

// hasHoles: where nothing was written there is a hole.
func hasHoles(t *testing.T, path string, f *os.File, p []byte) {
	size, far := int64(len(p)), int64(8<<20)
	if _, err := f.WriteAt(p, far); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
	if err != nil || hole < size || hole >= far {
		t.Errorf("SEEK_HOLE: %d, %v", hole, err)
	}
	data, err := unix.Seek(int(f.Fd()), hole, unix.SEEK_DATA)
	if err != nil || data <= hole || data > far {
		t.Errorf("SEEK_DATA: %d, %v", data, err)
	}
}

func mapsShared(t *testing.T, path string, f *os.File, p []byte) {
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mapped, p) {
		t.Error("other bytes are mapped than were written")
	}
	copy(mapped, "shared")
	copy(p, "shared")
	if err := errors.Join(unix.Msync(mapped, unix.MS_SYNC), unix.Munmap(mapped)); err != nil {
		t.Error(err)
	}
	forgetCaches(t)
	wantContent(t, "written through a mapping", path, p)
}

// links: the call that renames without replacing anything.
func links(t *testing.T, path string, _ *os.File, p []byte) {
	other := path + ".linked"
	if err := os.Link(path, other); err != nil {
		t.Error(err)
	}
	if err := os.Link(path, other); !errors.Is(err, os.ErrExist) {
		t.Errorf("a link onto a file: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	forgetCaches(t)
	wantContent(t, "the other name", other, p)
}

func copies(t *testing.T, path string, f *os.File, p []byte) {
	into := newFile(t, path+".copy", nil)
	from := int64(0)
	for from < int64(len(p)) {
		n, err := unix.CopyFileRange(int(f.Fd()), &from, int(into.Fd()), nil, len(p), 0)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes more after %d: %v", n, from, err)
		}
	}
	forgetCaches(t)
	wantContent(t, "the copy", path+".copy", p)
}

// locks: flock holds among descriptors of one client.
func locks(t *testing.T, path string, f *os.File, _ []byte) {
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []struct {
		what string
		f    *os.File
		how  int
		want error
	}{
		{"the first", f, unix.LOCK_EX, nil},
		{"another", other, unix.LOCK_EX | unix.LOCK_NB, unix.EWOULDBLOCK},
		{"the end of the first", f, unix.LOCK_UN, nil},
		{"another after it", other, unix.LOCK_EX | unix.LOCK_NB, nil},
	} {
		if err := unix.Flock(int(c.f.Fd()), c.how); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, was %v", c.what, err, c.want)
		}
	}
}

func largeAttributes(t *testing.T, path string, _ *os.File, _ []byte) {
	want := bytes.Repeat([]byte("x"), 60000)
	if err := unix.Setxattr(path, "user.cascade", want, 0); err != nil {
		t.Fatal(err)
	}
	forgetCaches(t)
	got := make([]byte, len(want)+1)
	n, err := unix.Getxattr(path, "user.cascade", got)
	if err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Group locks of Lustre.
const (
	groupLock   = 0x4008669e // LL_IOC_GROUP_LOCK
	groupUnlock = 0x4008669f // LL_IOC_GROUP_UNLOCK
)

func group(f *os.File, request uint, gid int) error {
	return unix.IoctlSetInt(int(f.Fd()), request, gid)
}

// TestRealGroupLocks: a group lock keeps everybody out who is not of the group,
// and a descriptor has one at most: why nothing here takes any.
func TestRealGroupLocks(t *testing.T) {
	path := filepath.Join(onLustre(t), "a")
	newFile(t, path, []byte("locked"))
	var files [3]*os.File // the last one does not wait
	for i := range files {
		// By the system call: os would make the last one wait in its own way.
		fd, err := unix.Open(path, unix.O_RDWR|[]int{0, 0, unix.O_NONBLOCK}[i], 0)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = os.NewFile(uintptr(fd), path)
		defer files[i].Close()
	}
	for _, c := range []struct {
		what string
		got  error
		want error
	}{
		{"gid 0", group(files[0], groupLock, 0), unix.EINVAL},
		{"unlock of what is not held", group(files[0], groupUnlock, 7), unix.EINVAL},
		{"lock", group(files[0], groupLock, 7), nil},
		{"again by the same descriptor", group(files[0], groupLock, 7), unix.EINVAL},
		{"the same group by another descriptor", group(files[1], groupLock, 7), nil},
		{"another group, without waiting", group(files[2], groupLock, 8), unix.EAGAIN},
		{"unlock of the first", group(files[0], groupUnlock, 7), nil},
		{"another group while the second holds it", group(files[2], groupLock, 8), unix.EAGAIN},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, was %v", c.what, c.got, c.want)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- group(files[0], groupLock, 8) }()
	if err := group(files[1], groupUnlock, 7); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("another group after the last unlock: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("another group never gets the lock")
	}
}
