package uring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/noise"
)

// open makes a ring, or skips the test where the kernel has none. A kernel that
// is new enough and does not forbid it must have it.
func open(t *testing.T, depth int) *Ring {
	t.Helper()
	r, err := Open(depth)
	if errors.Is(err, ErrUnsupported) {
		forbidden, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
		if string(forbidden) == "0\n" && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

func testFile(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	want := noise.Bytes(1, size)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, want
}

// TestReadv lets many goroutines share few slots for many turns of the queues,
// with buffers of all sizes, some of them empty.
func TestReadv(t *testing.T) {
	f, want := testFile(t, 1<<20)
	for _, depth := range []int{1, 3, 64} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			r := open(t, depth)
			if r.Depth() != depth {
				t.Fatalf("depth %d", r.Depth())
			}
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(depth), uint64(g)))
					for range 200 {
						off := rnd.IntN(len(want))
						var bufs [][]byte
						total := 0
						for range 1 + rnd.IntN(20) {
							bufs = append(bufs, make([]byte, rnd.IntN(3)*rnd.IntN(3000)))
							total += len(bufs[len(bufs)-1])
						}
						n, err := r.Readv(t.Context(), int(f.Fd()), bufs, int64(off))
						got := bytes.Join(bufs, nil)
						if err != nil || n != min(total, len(want)-off) || !bytes.Equal(got[:n], want[off:off+n]) {
							t.Errorf("%d bytes at %d: %d came, error %v", total, off, n, err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

func TestReadvErrors(t *testing.T) {
	f, want := testFile(t, 5000)
	r := open(t, 2)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p := make([]byte, 100)
	for name, c := range map[string]struct {
		ctx  context.Context
		fd   int
		bufs [][]byte
		off  int64
		n    int
		err  error
	}{
		"short at the end":  {t.Context(), int(f.Fd()), [][]byte{p}, 4950, 50, nil},
		"at the end":        {t.Context(), int(f.Fd()), [][]byte{p}, 5000, 0, nil},
		"far behind it":     {t.Context(), int(f.Fd()), [][]byte{p}, 1 << 40, 0, nil},
		"no buffers":        {t.Context(), int(f.Fd()), nil, 0, 0, nil},
		"negative offset":   {t.Context(), int(f.Fd()), [][]byte{p}, -1, 0, unix.EINVAL},
		"bad descriptor":    {t.Context(), 1 << 20, [][]byte{p}, 0, 0, unix.EBADF},
		"a directory":       {t.Context(), int(dir.Fd()), [][]byte{p}, 0, 0, unix.EISDIR},
		"context has ended": {ended, int(f.Fd()), [][]byte{p}, 0, 0, context.Canceled},
		"too many buffers":  {t.Context(), int(f.Fd()), manyBuffers(MaxBuffers + 1), 0, 0, unix.EINVAL},
		"as many as may be": {t.Context(), int(f.Fd()), manyBuffers(MaxBuffers), 0, MaxBuffers, nil},
		"one in pieces":     {t.Context(), int(f.Fd()), slices.Collect(slices.Chunk(make([]byte, MaxBuffers+1), 1)), 0, MaxBuffers + 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := r.Readv(c.ctx, c.fd, c.bufs, c.off)
			if n != c.n || !errors.Is(err, c.err) {
				t.Errorf("read %d bytes, error %v; want %d, %v", n, err, c.n, c.err)
			}
			if got := bytes.Join(c.bufs, nil); n > 0 && !bytes.Equal(got[:n], want[c.off:int(c.off)+n]) {
				t.Error("wrong bytes")
			}
		})
	}
	for _, depth := range []int{0, -1, maxEntries + 1} {
		if _, err := Open(depth); !errors.Is(err, unix.EINVAL) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

func manyBuffers(n int) (bufs [][]byte) {
	for range n {
		bufs = append(bufs, make([]byte, 1, 64)) // apart from each other
	}
	return bufs
}

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

// TestCancel: a read that waits ends with its context, one without a slot too,
// and others are not held up. The slots come back.
func TestCancel(t *testing.T) {
	r := open(t, 2)
	hung, w := pipe(t)
	f, want := testFile(t, 100)
	for range 2000 { // more often than the queues have places, and one in some thousand meets the kernel between two queues
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() {
			_, err := r.Readv(ctx, hung, [][]byte{make([]byte, 10)}, 0)
			result <- err
		}()
		p := make([]byte, 100)
		if n, err := r.Readv(t.Context(), int(f.Fd()), [][]byte{p}, 0); n != 100 || err != nil || !bytes.Equal(p, want) {
			t.Fatalf("read beside a hung one: %d, %v", n, err)
		}
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled read: %v", err)
		}
	}
	if _, err := unix.Write(w, []byte("x")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	if n, err := r.Readv(t.Context(), hung, [][]byte{p}, 0); n != 1 || err != nil || p[0] != 'x' {
		t.Errorf("the pipe afterwards: %d, %v", n, err)
	}
}

// TestFullRing: who waits for a slot can give up, and closing tells it.
func TestFullRing(t *testing.T) {
	r := open(t, 1)
	hung, _ := pipe(t)
	first := make(chan error)
	go func() {
		_, err := r.Readv(context.Background(), hung, [][]byte{make([]byte, 10)}, 0)
		first <- err
	}()
	for len(r.slots) > 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := r.Readv(ctx, hung, [][]byte{make([]byte, 1)}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read without a slot: %v", err)
	}
	second := make(chan error)
	go func() {
		_, err := r.Readv(context.Background(), hung, [][]byte{make([]byte, 10)}, 0)
		second <- err
	}()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-first; !errors.Is(err, unix.ECANCELED) && !errors.Is(err, unix.EINTR) && !errors.Is(err, ErrClosed) {
		t.Errorf("a read that was under way at Close: %v", err)
	}
	if err := <-second; !errors.Is(err, ErrClosed) {
		t.Errorf("a read that waited for a slot at Close: %v", err)
	}
	if _, err := r.Readv(t.Context(), hung, [][]byte{make([]byte, 1)}, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
	<-r.Done()
}

// TestOpenFails: a kernel that makes no ring is told from one that does.
func TestOpenFails(t *testing.T) {
	open(t, 1) // where there is none anyway this shows nothing
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := Open(1)
	if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, ErrUnsupported) || !errors.Is(err, unix.EMFILE) {
		t.Errorf("without a descriptor to spare: %v", err)
	}
}

// TestVerdict: what the kernel gave back undone is handed in again, and not for
// ever; a cancelled read is its context's error only when that has ended.
func TestVerdict(t *testing.T) {
	over := context.DeadlineExceeded
	for name, c := range map[string]struct {
		res   int32
		ended error
		again int
		n     int
		err   error
		retry bool
	}{
		"all":                    {4096, nil, 0, 4096, nil, false},
		"all, though late":       {4096, over, 0, 4096, nil, false},
		"end of file":            {0, nil, 0, 0, nil, false},
		"EIO":                    {-int32(unix.EIO), nil, 0, 0, unix.EIO, false},
		"EIO, late":              {-int32(unix.EIO), over, 0, 0, unix.EIO, false},
		"EAGAIN":                 {-int32(unix.EAGAIN), nil, 0, 0, nil, true},
		"EAGAIN for ever":        {-int32(unix.EAGAIN), nil, maxAgain, 0, unix.EAGAIN, false},
		"interrupted":            {-int32(unix.EINTR), nil, 3, 0, nil, true},
		"cancelled by a thread":  {-int32(unix.ECANCELED), nil, 0, 0, nil, true},
		"cancelled by context":   {-int32(unix.ECANCELED), over, 0, 0, over, false},
		"interrupted by context": {-int32(unix.EINTR), over, 0, 0, over, false},
	} {
		n, retry, err := verdict(c.res, c.ended, c.again)
		if n != c.n || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || retry != c.retry {
			t.Errorf("%s: %d, %v, again: %v", name, n, err, retry)
		}
	}
}
