package hbm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/cuda"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/fakecuda"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/tiers"
)

func TestMain(m *testing.M) { os.Exit(fakecuda.Main(m)) }

// retain returns the first GPU of a driver.
func retain(t *testing.T, library string) *cuda.Context {
	t.Helper()
	d, err := cuda.Open(library)
	if errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.NoDevice) {
		t.Skip("a GPU is missing: run this where there is one")
	}
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Retain()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func open(t *testing.T, o Options) *Tier {
	t.Helper()
	tr, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// damage changes a byte of a block on the device.
func damage(t *testing.T, tr *Tier, id block.ID) {
	t.Helper()
	p, err := tr.Pin(id)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	a := p.(*access)
	var b [1]byte
	err = a.move(context.Background(), a.size/2, nil, 1, true, func(piece []byte, _ int64) { b[0] = piece[0] ^ 1 })
	if _, err2 := a.Write(0, a.size/2, b[:]); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
}

func conform(t *testing.T, c *cuda.Context, unit int64) {
	tiertest.Run(t, tiertest.Config{
		Bounded: true,
		New: func(t *testing.T, _ string, capacity int64) tiers.Tier {
			return open(t, Options{Context: c, Bytes: capacity, UnitBytes: unit, Copiers: 3, BufferBytes: 256 << 10})
		},
		Corrupt: func(t *testing.T, _ string, tr tiers.Tier, id block.ID) { damage(t, tr.(*Tier), id) },
	})
}

func TestConformance(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	before, _, _ := c.MemInfo()
	conform(t, c, 16<<10)
	if after, _, _ := c.MemInfo(); after != before {
		t.Errorf("%d bytes of device memory are gone after all tiers were closed", before-after)
	}
}

// TestConformanceOnGPU is the same on the machine's GPU.
func TestConformanceOnGPU(t *testing.T) { conform(t, retain(t, ""), 64<<10) }

// item is a block with drawn bytes, in memory of the caller's.
func item(data []byte, seed uint64) tiers.Item {
	noise.Fill(data, seed)
	return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.ExtendCRC(0, data)}, Data: data}
}

func mapped(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// TestDirect tries that blocks of the arena are copied from and to it without a
// stop, also where neither begins at a unit, and that damage is still found.
func TestDirect(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	arena := mapped(t, 1<<20)
	tr := open(t, Options{Context: c, Bytes: 4 << 20, UnitBytes: 4 << 10, Arena: arena})
	defer func() { noError(t, tr.Close()) }()
	const size = 100_001
	it := item(arena[77:][:size], 1)
	noError(t, tr.Put(t.Context(), it))
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	back := arena[500_000:][:size]
	noError(t, p.ReadInto(t.Context(), back))
	if direct, bounced := tr.Traffic(); !bytes.Equal(back, it.Data) || direct != 2*size || bounced != 0 {
		t.Errorf("equal bytes %v, %d copied directly, %d by copiers", bytes.Equal(back, it.Data), direct, bounced)
	}
	edge := make([]byte, size)
	noError(t, p.ReadInto(t.Context(), edge))
	if _, bounced := tr.Traffic(); !bytes.Equal(edge, it.Data) || bounced != size {
		t.Errorf("into other memory %d bytes were copied by copiers", bounced)
	}
	damage(t, tr, it.Info.ID)
	if err := p.ReadInto(t.Context(), back); !errors.Is(err, tiers.ErrCorrupt) {
		t.Errorf("a damaged block: %v", err)
	}
	p.Release()
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestFromFile tries that a block which the process can not address is read into
// pinned memory, and verified there.
func TestFromFile(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	tr := open(t, Options{Context: c, Bytes: 4 << 20, UnitBytes: 4 << 10})
	defer func() { noError(t, tr.Close()) }()
	files := testdevice.New(1 << 20) // it is of no interest here that it is memory
	it := item(make([]byte, 9000), 2)
	noError(t, files.Put(t.Context(), it))
	src, err := files.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Release()
	s, err := tr.Reserve(it.Info.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	noError(t, s.CopyFrom(t.Context(), src))
	if crc, err := s.CRC(0, 0, it.Info.Size); err != nil || crc != it.Info.CRC {
		t.Errorf("CRC %#x, %v; want %#x", crc, err, it.Info.CRC)
	}
	noError(t, files.Corrupt(it.Info.ID))
	if err := s.CopyFrom(t.Context(), src); !errors.Is(err, tiers.ErrCorrupt) {
		t.Errorf("CopyFrom of a damaged block: %v", err)
	}
}

// stall has the only copier of a tier wait, until the function that it returns is called.
func stall(t *testing.T, c *cuda.Context, tr *Tier) (resume func()) {
	t.Helper()
	words := mapped(t, 4096)
	noError(t, c.Register(words, cuda.Portable|cuda.DeviceMap))
	at, err := c.Mapped(words)
	noError(t, err)
	cp := <-tr.engine.copiers
	noError(t, cp.stream.WaitValue(at, 1))
	tr.engine.give(cp)
	return func() {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&words[0])), 1)
		noError(t, cp.stream.Synchronize())
		noError(t, c.Unregister(words))
	}
}

// TestStalled tries that a context ends the wait for a copy by a copier, and that the
// copier and the memory come back once the copy has ended.
func TestStalled(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	tr := open(t, Options{Context: c, Bytes: 64 << 10, UnitBytes: 4 << 10, Copiers: 1})
	it := item(make([]byte, 4<<10), 3)
	noError(t, tr.Put(t.Context(), it))
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	resume := stall(t, c, tr)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	dst := make([]byte, 4<<10)
	if err := p.ReadInto(ctx, dst); !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ReadInto past its deadline: %v", err)
	}
	if err := p.ReadInto(ctx, dst); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("ReadInto without a free copier: %v", err)
	}
	p.Release()
	if err := tr.Evict(it.Info.ID); !errors.Is(err, tiers.ErrPinned) {
		t.Errorf("Evict of a block that is still copied: %v", err)
	}
	resume()
	again, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	noError(t, again.ReadInto(t.Context(), dst))
	if !bytes.Equal(dst, it.Data) {
		t.Error("the copier has other bytes after a copy that nobody waited for")
	}
	again.Release()
	noError(t, tr.Close())
}

// TestSpoiled tries that a slot into which a copy is still under way takes no other
// block, and that its memory comes back when the copy has ended.
func TestSpoiled(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	tr := open(t, Options{Context: c, Bytes: 8 << 10, UnitBytes: 4 << 10, Copiers: 1})
	it := item(make([]byte, 8<<10), 6)
	src := testdevice.New(1 << 20)
	noError(t, src.Put(t.Context(), it))
	p, err := src.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	s, err := tr.Reserve(it.Info.Size)
	if err != nil {
		t.Fatal(err)
	}
	resume := stall(t, c, tr)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.CopyFrom(ctx, p); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("CopyFrom past its deadline: %v", err)
	}
	if _, err := s.Write(0, 0, it.Data); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("Write beside a copy: %v", err)
	}
	if err := s.Commit(it.Info, nil); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("Commit beside a copy: %v", err)
	}
	if _, err := tr.Reserve(it.Info.Size); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("Reserve of memory that is still copied to: %v", err)
	}
	resume()
	tr.engine.give(<-tr.engine.copiers) // given back before the memory is
	for tr.Usage().Used != 0 {
		runtime.Gosched()
	}
	noError(t, tr.Put(t.Context(), it))
	noError(t, tr.Close())
}

// TestLost tries that a context that is lost makes all blocks misses, and nothing
// else.
func TestLost(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	tr := open(t, Options{Context: c, Bytes: 64 << 10, UnitBytes: 4 << 10})
	it := item(make([]byte, 5000), 4)
	noError(t, tr.Put(t.Context(), it))
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	fakecuda.Rules(t, "copy=700@1")
	dst := make([]byte, 5000)
	if err := p.ReadInto(t.Context(), dst); !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, cuda.IllegalAddress) {
		t.Errorf("ReadInto when the context is lost: %v", err)
	}
	p.Release()
	if _, err := tr.Pin(it.Info.ID); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("Pin after that: %v", err)
	}
	if err := tr.Put(t.Context(), item(make([]byte, 10), 5)); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("Put after that: %v", err)
	}
	noError(t, tr.Close())
}

func TestOpen(t *testing.T) {
	c := retain(t, fakecuda.Library(t))
	free, _, err := c.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	tr := open(t, Options{Context: c})
	if got := tr.Usage().Capacity; got > free/5*4 || got < free/5*4-2<<20 {
		t.Errorf("%d bytes by default, with %d free", got, free)
	}
	noError(t, tr.Close())
	for name, o := range map[string]Options{
		"no room for a unit":   {Context: c, Bytes: 1000},
		"an odd unit":          {Context: c, UnitBytes: 1000},
		"half a unit a copier": {Context: c, BufferBytes: 3 << 20},
	} {
		if tr, err := Open(o); err == nil {
			t.Errorf("%s: opened", name)
			noError(t, tr.Close())
		}
	}
	for _, call := range []string{"cuMemAlloc_v2", "cuMemHostRegister_v2", "cuStreamCreateWithPriority"} {
		fakecuda.Rules(t, call+"=2@1")
		if _, err := Open(Options{Context: c, Bytes: 4 << 20}); !errors.Is(err, cuda.OutOfMemory) {
			t.Errorf("Open when %s fails: %v", call, err)
		}
		if after, _, _ := c.MemInfo(); after != free {
			t.Errorf("%s failed, and %d bytes are gone", call, free-after)
		}
	}
}
