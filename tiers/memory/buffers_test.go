package memory

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/tiers"
)

const poolBytes = 4 << 20

func readyBuffers(t *testing.T, bytes int64) *Buffers {
	t.Helper()
	p, err := NewBuffers(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBufferSizes(t *testing.T) {
	p := readyBuffers(t, poolBytes)
	for _, size := range []int64{0, 1, 511, 4096, 28<<10 + 1, 1 << 20, poolBytes} {
		r, ok := p.Take(size)
		if !ok {
			t.Fatalf("no room for %d of %d bytes", size, poolBytes)
		}
		if int64(len(r.Bytes())) != size || cap(r.Bytes()) != len(r.Bytes()) {
			t.Errorf("room of %d bytes, capacity %d; want %d", len(r.Bytes()), cap(r.Bytes()), size)
		}
		clear(r.Bytes())
		if u := p.Usage(); u.Used < size || u.Payload != size || u.Blocks != 1 || u.Capacity != poolBytes {
			t.Errorf("usage with a room of %d bytes: %+v", size, u)
		}
		r.Release()
		r.Release()
		if u := p.Usage(); u.Used != 0 || u.Payload != 0 || u.Blocks != 0 {
			t.Errorf("usage with no room out: %+v", u)
		}
	}
	for _, size := range []int64{-1, poolBytes + 1, 1 << 62} {
		if _, ok := p.Take(size); ok {
			t.Errorf("room for %d of %d bytes", size, poolBytes)
		}
	}
}

func TestNoBuffers(t *testing.T) {
	p := readyBuffers(t, 0)
	if _, ok := p.Take(1); ok {
		t.Error("a pool of nothing has room")
	}
	if r, ok := p.Take(0); !ok || len(r.Bytes()) != 0 {
		t.Error("no room for nothing")
	} else {
		r.Release()
	}
	if _, err := NewBuffers(-1); err == nil {
		t.Error("a pool of less than nothing")
	}
	if p, err := NewBuffers(1); err != nil {
		t.Error(err)
	} else if err := p.WaitReady(t.Context()); err != nil || p.Usage().Capacity != 4096 {
		t.Errorf("a byte: %v, %+v", err, p.Usage())
	} else if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestBuffersFull: a full pool says so at once, and has all its room again later.
func TestBuffersFull(t *testing.T) {
	p := readyBuffers(t, poolBytes)
	var rooms []*Buffer
	for {
		r, ok := p.Take(64 << 10)
		if !ok {
			break
		}
		for i := range r.Bytes() {
			r.Bytes()[i] = byte(len(rooms))
		}
		rooms = append(rooms, r)
	}
	if len(rooms) != poolBytes/(64<<10) {
		t.Errorf("%d rooms of 64 KiB in %d bytes", len(rooms), poolBytes)
	}
	for i, r := range rooms {
		if !bytes.Equal(r.Bytes(), bytes.Repeat([]byte{byte(i)}, 64<<10)) {
			t.Errorf("room %d shares bytes with another", i)
		}
		r.Release()
	}
	r, ok := p.Take(poolBytes)
	if !ok {
		t.Fatal("the room is not one again")
	}
	r.Release()
}

// TestBuffersUntouched: all of a pool can be taken from the start, and what nobody has used takes no memory.
func TestBuffersUntouched(t *testing.T) {
	const size = 64 << 20
	p := readyBuffers(t, size)
	if n := p.Untouched(); n != size {
		t.Errorf("%d of %d bytes are untouched at first", n, size)
	}
	for range 3 {
		r, ok := p.Take(1 << 20)
		if !ok {
			t.Fatal("no room")
		}
		clear(r.Bytes())
		r.Release()
	}
	if n := size - p.Untouched(); n < 1<<20 || n > 8<<20 {
		t.Errorf("%d bytes of memory for a buffer of 1 MiB, three times", n)
	}
	r, ok := p.Take(size)
	if !ok {
		t.Fatal("no room for all of it")
	}
	clear(r.Bytes())
	r.Release()
	if n := p.Untouched(); n != 0 {
		t.Errorf("%d of %d bytes are untouched after use", n, size)
	}
}

func TestBuffersConcurrent(t *testing.T) {
	p := readyBuffers(t, poolBytes)
	var wg sync.WaitGroup
	var taken atomic.Int64
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range 300 {
				r, ok := p.Take(rng.Int64N(poolBytes / 4))
				if !ok {
					continue
				}
				taken.Add(1)
				fill := bytes.Repeat([]byte{byte(w + 1)}, min(len(r.Bytes()), 4096))
				copy(r.Bytes(), fill)
				if !bytes.Equal(r.Bytes()[:len(fill)], fill) {
					t.Error("another writes to this room")
				}
				r.Release()
			}
		})
	}
	wg.Wait()
	if u := p.Usage(); u.Used != 0 || u.Blocks != 0 || taken.Load() == 0 {
		t.Errorf("%d rooms taken; usage at the end %+v", taken.Load(), u)
	}
}

// TestBuffersCloseWaits: the memory stays mapped for rooms that are out.
func TestBuffersCloseWaits(t *testing.T) {
	p := readyBuffers(t, poolBytes)
	r, ok := p.Take(9000)
	if !ok {
		t.Fatal("no room")
	}
	var released atomic.Bool
	closed := make(chan error, 1)
	go func() {
		err := p.Close()
		if !released.Load() {
			err = errors.Join(err, errors.New("returned while a room was out"))
		}
		closed <- err
	}()
	for {
		extra, ok := p.Take(1)
		if !ok {
			break
		}
		extra.Release()
		time.Sleep(100 * time.Microsecond)
	}
	clear(r.Bytes())
	released.Store(true)
	r.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, ok := p.Take(1); ok {
		t.Error("a closed pool has room")
	}
}

func TestBuffersCloseGivesUp(t *testing.T) {
	p, err := NewBuffers(poolBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, ok := p.Take(9000)
	if !ok {
		t.Fatal("no room")
	}
	if err := p.close(time.Millisecond); !errors.Is(err, tiers.ErrPinned) {
		t.Errorf("Close with a room out: %v", err)
	}
	clear(r.Bytes()) // still mapped
	r.Release()
}
