package uring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// owned is memory that its owner has back from a read: nothing may write to it
// any more. It keeps the whole pages that it lies in apart from those of others.
type owned struct {
	mem  []byte
	mark byte
}

func mapOwned(t *testing.T, n int) *owned {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return &owned{mem: mem}
}

// take marks the memory as its owner's.
func (o *owned) take(mark byte) {
	o.mark = mark
	for i := range o.mem {
		o.mem[i] = mark
	}
}

// intact reports whether nobody has written to it since.
func (o *owned) intact() bool {
	for _, b := range o.mem {
		if b != o.mark {
			return false
		}
	}
	return true
}

// sources are descriptors to read from: one that answers at once, one that
// answers when somebody writes, and one whose reads the kernel cannot end.
type sources struct {
	file, pipe, hung int
	size             int
}

// TestMemoryIsTheCallers: whatever a read came to, nobody writes to its memory
// when Readv has returned: among many reads that end, are cancelled before they
// begin, while they wait and while they run, and after the ring was closed under
// them, while the collector runs all the time.
func TestMemoryIsTheCallers(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	const pages, callers = 4, 24
	page := unix.Getpagesize()
	file, data := testFile(t, 1<<20)
	stuck, hung := hung(t, bytes.Repeat([]byte{0xff}, 1<<20))
	waits, w := pipe(t)
	from := sources{int(file.Fd()), waits, hung, len(data)}
	for round := range 6 {
		r, err := Open(8)
		if errors.Is(err, ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var feeds, all sync.WaitGroup
		feeds.Go(func() { feed(stop, w) })
		rooms := make([]*owned, callers)
		for g := range callers {
			rooms[g] = mapOwned(t, pages*page)
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				for turn := range 40 {
					if err := readOwned(r, from, rnd, rooms[g]); errors.Is(err, ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
					}
					rooms[g].take(byte(turn%100 + 1))
					runtime.Gosched()
					if !rooms[g].intact() {
						t.Errorf("caller %d, turn %d: memory was written to after Readv had returned", g, turn)
						return
					}
				}
			})
		}
		if round%2 == 1 { // under load
			time.Sleep(time.Duration(round) * time.Millisecond)
			ended, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_ = r.Close(ended)
			cancel()
		}
		for n := 0; stuck.Waiting() > 0 || !waitFor(&all, time.Millisecond); n++ {
			stuck.Answer()
			stuck.Hang()
		}
		close(stop)
		feeds.Wait()
		stuck.Answer()
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for g, o := range rooms {
			if !o.intact() {
				t.Errorf("caller %d: memory was written to after all reads had returned", g)
			}
		}
		stuck.Hang()
	}
	stuck.Answer()
}

// feed writes to a pipe now and then, so that some reads of it end.
func feed(stop <-chan struct{}, w int) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(300 * time.Microsecond):
			_, _ = unix.Write(w, []byte{0xff}) // a full pipe blocks nobody for long: it has readers
		}
	}
}

// waitFor reports whether a group has ended within d.
func waitFor(g *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// readOwned makes one read into pieces of o with a context that ends at any
// time. Its error is one that no read may come to.
func readOwned(r *Ring, from sources, rnd *rand.Rand, o *owned) error {
	fd := []int{from.file, from.file, from.pipe, from.hung}[rnd.IntN(4)]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(time.Duration(rnd.IntN(400))*time.Microsecond, cancel)
	var bufs [][]byte
	for p := o.mem; len(p) > 0; {
		n := min(1+rnd.IntN(6000), len(p))
		bufs = append(bufs, p[:n:n])
		p = p[n:]
	}
	off := int64(rnd.IntN(from.size))
	if fd == from.pipe {
		off = 0
	}
	n, err := r.Readv(ctx, fd, bufs, off)
	switch {
	case err == nil && n >= 0, errors.Is(err, context.Canceled), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECANCELED):
		return nil
	}
	return err
}

// TestMemoryOfGoroutines: buffers that a caller declares as arrays of its own,
// below a stack that grows and is moved while the kernel reads, get their bytes,
// and nothing else does.
func TestMemoryOfGoroutines(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	r := open(t, 16)
	waits, w := pipe(t)
	const n = 200
	var all sync.WaitGroup
	for g := range n {
		all.Go(func() {
			var before, buf, after [64]byte
			read := make(chan error, 1)
			go func() {
				_, err := r.Readv(t.Context(), waits, [][]byte{buf[:1]}, 0)
				read <- err
			}()
			if depth := grow(1 + g%9); depth == 0 {
				t.Error("no stack")
			}
			if err := <-read; err != nil || buf[0] != 0xff || before != [64]byte{} || after != [64]byte{} || buf[1] != 0 {
				t.Errorf("goroutine %d: byte %#x, %v", g, buf[0], err)
			}
		})
	}
	for range n {
		if _, err := unix.Write(w, []byte{0xff}); err != nil {
			t.Fatal(err)
		}
		runtime.GC() // it also shrinks stacks
	}
	all.Wait()
}

// grow needs a stack of 2^k kilobytes.
//
//go:noinline
func grow(k int) int {
	if k == 0 {
		return 1
	}
	var room [2048]byte
	for i := range room {
		room[i] = byte(k)
	}
	return grow(k-1) + grow(k-1) + int(room[k]) - int(room[0])
}

// TestVectorsOutliveTheCall: a read keeps the list of its buffers alive itself:
// the caller's list may be gone or changed while the kernel reads.
func TestVectorsOutliveTheCall(t *testing.T) {
	r := open(t, 4)
	waits, w := pipe(t)
	p, other := make([]byte, 8), make([]byte, 8)
	bufs := [][]byte{p[:4], p[4:]}
	result := make(chan error, 1)
	go func() {
		n, err := r.Readv(t.Context(), waits, bufs, 0)
		if err == nil && n != 8 {
			err = fmt.Errorf("%d bytes", n)
		}
		result <- err
	}()
	for r.underWay() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	bufs[0], bufs[1] = other[:4], other[4:]
	runtime.GC()
	if _, err := unix.Write(w, []byte("abcdefgh")); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil || string(p) != "abcdefgh" || !bytes.Equal(other, make([]byte, 8)) {
		t.Errorf("read %q and %q, %v", p, other, err)
	}
}

// underWay is how many reads the kernel has.
func (r *Ring) underWay() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.ops {
		if op != nil {
			n++
		}
	}
	return n
}
