package vfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
)

// strict is a file system that goes past the page cache only with buffers,
// lengths and offsets that are multiples of what it asks for.
type strict struct {
	vfs.FS
	t     testing.TB
	align vfs.Alignment
	wrote *[][]byte // buffers of writes; may be nil
}

const maxVec = 1024 // buffers of one call, as the kernel allows

type strictFile struct {
	vfs.File
	fs     strict
	direct bool
}

func (s strict) Create(path string, perm uint32) (vfs.File, error) {
	f, err := s.FS.Create(path, perm)
	return &strictFile{File: f, fs: s}, err
}

func (s strict) Open(path string) (vfs.File, error) {
	f, err := s.FS.Open(path)
	return &strictFile{File: f, fs: s}, err
}

func (f *strictFile) SetDirect() (vfs.Alignment, error) {
	f.direct = true
	return f.fs.align, nil
}

func (f *strictFile) check(bufs [][]byte, off int64) {
	if !f.direct {
		return
	}
	if off%int64(f.fs.align.Offset) != 0 || len(bufs) > maxVec {
		f.fs.t.Errorf("%d buffers at %d, want multiples of %d", len(bufs), off, f.fs.align.Offset)
	}
	for _, b := range bufs {
		if addr := uintptr(unsafe.Pointer(unsafe.SliceData(b))); addr%uintptr(f.fs.align.Memory) != 0 || len(b)%f.fs.align.Offset != 0 {
			f.fs.t.Errorf("buffer of %d bytes at %#x, want multiples of %+v", len(b), addr, f.fs.align)
		}
	}
}

func (f *strictFile) Preadv(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	f.check(bufs, off)
	return vfs.Preadv(ctx, f.File, bufs, off)
}

func (f *strictFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	f.check(bufs, off)
	if f.fs.wrote != nil {
		*f.fs.wrote = append(*f.fs.wrote, bufs...)
	}
	return f.File.Pwritev(bufs, off)
}

// cut makes buffers of odd sizes and addresses out of mem that have n bytes
// together.
func cut(r *rand.Rand, mem []byte, n int) (bufs [][]byte) {
	for at := 0; n > 0; {
		if r.IntN(2) == 0 {
			at += r.IntN(700) // spoil the alignment
		} else {
			at = (at + 4095) &^ 4095
		}
		k := min(n, []int{r.IntN(3), r.IntN(600), 512, 4096, 8192, r.IntN(50000)}[r.IntN(6)])
		bufs = append(bufs, mem[at:at+k])
		at, n = at+k, n-k
	}
	return bufs
}

func join(bufs [][]byte) []byte { return bytes.Join(bufs, nil) }

func scratchOf(t *testing.T, size int) []byte {
	t.Helper()
	s := vfs.NewScratch(size, 0)
	p, err := s.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Put(p) })
	return p
}

// TestDirect writes and reads with all sorts of alignments and compares with
// what an ordinary file holds.
func TestDirect(t *testing.T) {
	dir := t.TempDir()
	real, err := vfs.ProbeDirect(vfs.OS{}, filepath.Join(dir, "probe"))
	cases := map[string]vfs.FS{
		"sectors, any memory": strict{vfs.OS{}, t, vfs.Alignment{4, 512}, nil},
		"pages":               strict{vfs.OS{}, t, vfs.Alignment{4096, 4096}, nil},
		"64 KiB pages":        strict{vfs.OS{}, t, vfs.Alignment{4096, 64 << 10}, nil},
	}
	if err == nil {
		cases[fmt.Sprintf("the disk, %+v", real)] = vfs.OS{}
	} else {
		t.Logf("no O_DIRECT in %s: %v", dir, err)
	}
	for name, fs := range cases {
		t.Run(name, func(t *testing.T) {
			d := vfs.NewDirect(fs)
			defer d.Close()
			path := filepath.Join(t.TempDir(), "f")
			f := create(t, d, path)
			unit, direct := vfs.UnitOf(f)
			if !direct {
				t.Fatal("the file goes through the page cache")
			}
			r := rand.New(rand.NewPCG(1, 2))
			mem := scratchOf(t, 32<<20)
			noise.Fill(mem, 1)
			var want []byte
			for range 6 {
				bufs := cut(r, mem, (1+r.IntN(3<<20/unit))*unit)
				n, err := f.Pwritev(bufs, int64(len(want)))
				if err != nil || n != vfs.Length(bufs) {
					t.Fatalf("Pwritev took %d of %d bytes, error %v", n, vfs.Length(bufs), err)
				}
				want = append(want, join(bufs)...)
			}
			onDisk, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(onDisk, want) {
				t.Fatalf("the file is right: %v, error %v", bytes.Equal(onDisk, want), err)
			}
			for range 60 {
				off := r.IntN(len(want))
				n := r.IntN(min(len(want)-off, 2<<20)) + 1
				clear(mem[:n])
				bufs := cut(r, mem, n)
				got, err := vfs.Preadv(t.Context(), f, bufs, int64(off))
				if err != nil || got != int64(n) || !bytes.Equal(join(bufs), want[off:off+n]) {
					t.Fatalf("%d bytes at %d: %d came, right: %v, error %v", n, off, got, bytes.Equal(join(bufs), want[off:off+n]), err)
				}
			}
		})
	}
}

// TestDirectWritesWholePages: a write of whole pages reaches the disk in buffers
// that are such, whatever it takes; one that is not goes as it is.
func TestDirectWritesWholePages(t *testing.T) {
	page := os.Getpagesize()
	var wrote [][]byte
	d := vfs.NewDirect(strict{vfs.OS{}, t, vfs.Alignment{4, 512}, &wrote})
	defer d.Close()
	path := filepath.Join(t.TempDir(), "f")
	f := create(t, d, path)
	mem := scratchOf(t, 1<<20)
	block := func(i int) []byte { return mem[i*12*page:][:10*page+512] }
	pad := mem[11*page:][:page-512]
	var want []byte
	write := func(bufs ...[]byte) {
		wrote = nil
		if _, err := f.Pwritev(bufs, int64(len(want))); err != nil {
			t.Fatal(err)
		}
		want = append(want, join(bufs)...)
	}
	noise.Fill(mem, 2)
	write(block(0), pad, block(1), pad, mem[512:][:2*page])
	var straight int
	for _, b := range wrote {
		if !(vfs.Alignment{page, page}).Takes(b) || len(b)%page != 0 {
			t.Errorf("a buffer of %d bytes at %p", len(b), b)
		}
		if len(b) == 10*page {
			straight++
		}
	}
	if straight != 2 {
		t.Errorf("the pages of %d blocks of 2 went straight: %d buffers", straight, len(wrote))
	}
	write(mem[:512])
	write(mem[1024:][:2*page])
	if len(wrote) != 1 || len(wrote[0]) != 2*page {
		t.Errorf("a write at no page's begin became %d buffers", len(wrote))
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file is right: %v, error %v", bytes.Equal(got, want), err)
	}
}

// TestDirectReadsToTheEnd: a file that ends anywhere gives all it has, and then
// says so.
func TestDirectReadsToTheEnd(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, 511, 512, 513, 5000, 8192, 1<<20 + 7} {
		path := filepath.Join(dir, fmt.Sprint(size))
		want := bytes.Repeat([]byte("0123456"), size/7+1)[:size]
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		d := vfs.NewDirect(vfs.OS{})
		f, err := d.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []int{0, 1, 512, 4096, size} {
			for _, more := range []int{0, 1, 4096} {
				left := max(0, size-from)
				p := make([]byte, left+more)
				n, err := f.Pread(p, int64(from))
				if wantEOF := more > 0; errors.Is(err, io.ErrUnexpectedEOF) != wantEOF || n != left || !bytes.Equal(p[:n], want[min(from, size):]) {
					t.Errorf("file of %d bytes, %d at %d: %d came, error %v", size, len(p), from, n, err)
				}
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		d.Close()
	}
}

// TestDirectFails: errors come through with what arrived before them.
func TestDirectFails(t *testing.T) {
	fault := vfstest.NewFault(strict{vfs.OS{}, t, vfs.Alignment{512, 512}, nil})
	d := vfs.NewDirect(fault)
	defer d.Close()
	f := create(t, d, filepath.Join(t.TempDir(), "f"))
	mem := scratchOf(t, 4<<20)
	if _, err := f.Pwrite(mem[:1000], 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a write of 1000 bytes: %v", err)
	}
	if _, err := f.Pwrite(mem[:512], 100); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a write at 100: %v", err)
	}
	want := bytes.Repeat([]byte("abcdefgh"), 3<<17)
	if n, err := f.Pwrite(want, 0); err != nil || n != len(want) {
		t.Fatal(err)
	}
	// 3 MiB that are aligned nowhere pass in three pieces or more.
	fault.Add(vfstest.Rule{Op: vfs.OpRead, After: 1, Count: 1, Bytes: 512, Err: vfs.ErrIO})
	n, err := f.Pread(mem[3:3+len(want)-1], 1)
	if !errors.Is(err, vfs.ErrIO) || n < 512 || n >= len(want) || !bytes.Equal(mem[3:3+n], want[1:1+n]) {
		t.Errorf("read %d bytes, right: %v, error %v", n, bytes.Equal(mem[3:3+n], want[1:1+n]), err)
	}
	fault.Add(vfstest.Rule{Op: vfs.OpWrite, After: 1, Count: 1, Bytes: 1024, Err: vfs.ErrNoSpace})
	copy(mem[1:], want)
	if n, err := f.Pwrite(mem[1:1+len(want)], int64(len(want))); !errors.Is(err, vfs.ErrNoSpace) || n < 1024 || n >= len(want) {
		t.Errorf("wrote %d bytes, error %v", n, err)
	}
}

// TestDirectUnsupported: files that cannot go past the page cache work as
// before, and the probe says so and leaves nothing behind.
func TestDirectUnsupported(t *testing.T) {
	dir := t.TempDir()
	plain := struct{ vfs.FS }{notDirect{vfs.OS{}}}
	if _, err := vfs.ProbeDirect(plain, filepath.Join(dir, "probe")); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("probe: %v", err)
	}
	liar := vfstest.NewFault(strict{vfs.OS{}, t, vfs.Alignment{512, 512}, nil})
	liar.Add(vfstest.Rule{Op: vfs.OpWrite, Err: unix.EINVAL})
	if _, err := vfs.ProbeDirect(liar, filepath.Join(dir, "probe")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("probe of a file system that takes O_DIRECT and then fails: %v", err)
	}
	for _, full := range []error{vfs.ErrNoSpace, vfs.ErrQuota} {
		fs := vfstest.NewFault(strict{vfs.OS{}, t, vfs.Alignment{512, 512}, nil})
		fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: full})
		if a, err := vfs.ProbeDirect(fs, filepath.Join(dir, "probe")); err != nil || a != (vfs.Alignment{512, 512}) {
			t.Errorf("probe of a file system that takes O_DIRECT and has no room: %+v, %v", a, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	d := vfs.NewDirect(plain)
	defer d.Close()
	f := create(t, d, filepath.Join(dir, "f"))
	if n, err := f.Pwrite([]byte("abc"), 5); isDirect(f) || n != 3 || err != nil {
		t.Errorf("direct: %v, wrote %d bytes, error %v", isDirect(f), n, err)
	}
}

// notDirect hides everything of its files but File.
type notDirect struct{ vfs.FS }

func (n notDirect) Create(path string, perm uint32) (vfs.File, error) {
	f, err := n.FS.Create(path, perm)
	return struct{ vfs.File }{f}, err
}

// TestDirectLeavesNoCache: what was written and read takes no page cache.
func TestDirectLeavesNoCache(t *testing.T) {
	dir := t.TempDir()
	if _, err := vfs.ProbeDirect(vfs.OS{}, filepath.Join(dir, "probe")); err != nil {
		t.Skipf("no O_DIRECT in %s: %v", dir, err)
	}
	var pages [2]uint64
	mem := scratchOf(t, 4<<20)
	for i, fs := range []vfs.FS{vfs.NewDirect(vfs.OS{}), vfs.OS{}} {
		path := filepath.Join(dir, fmt.Sprint(i))
		f := create(t, fs, path)
		if _, err := f.Pwrite(mem, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Pread(mem[7:1<<20], 100); err != nil {
			t.Fatal(err)
		}
		pages[i] = cachedPages(t, path)
		if err := vfs.Forget(f, 0, 4<<20); err != nil {
			t.Error(err)
		}
		if left := cachedPages(t, path); left != 0 {
			t.Errorf("%d pages cached after Forget", left)
		}
	}
	if pages[0] != 0 || pages[1] == 0 {
		t.Errorf("%d pages cached past the cache and %d through it", pages[0], pages[1])
	}
}

func cachedPages(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: 1 << 40}, &st, 0); err != nil {
		t.Skipf("the kernel does not tell what it caches: %v", err)
	}
	return st.Cache
}

// isDirect reports whether f is a file of a Direct that goes past the page
// cache.
func isDirect(f vfs.File) bool {
	_, ok := vfs.UnitOf(f)
	return ok
}
