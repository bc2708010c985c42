package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/fakecuda"
	"cascadekv/internal/testing/noise"
)

func TestMain(m *testing.M) {
	if handle := os.Getenv("CASCADE_TEST_IPC"); handle != "" {
		os.Exit(importer(handle, os.Getenv("CASCADE_TEST_LIBRARY")))
	}
	os.Exit(fakecuda.Main(m))
}

// fake returns a context of the stand-in's only device.
func fake(t *testing.T) *Context {
	t.Helper()
	d, err := Open(fakecuda.Library(t))
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
	t.Cleanup(func() { check(t, c.Release()) })
	return c
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func must[V any](v V, err error) func(t testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// mapped returns memory as an arena has it.
func mapped(t *testing.T, size int) []byte {
	t.Helper()
	b := must(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS))(t)
	t.Cleanup(func() { check(t, unix.Munmap(b)) })
	return b
}

func stream(t *testing.T, c *Context) *Stream {
	t.Helper()
	s := must(c.NewStream(0))(t)
	t.Cleanup(func() { check(t, s.Destroy()) })
	return s
}

func alloc(t *testing.T, c *Context, bytes int64) DevicePtr {
	t.Helper()
	p := must(c.Alloc(bytes))(t)
	t.Cleanup(func() { check(t, c.Free(p)) })
	return p
}

func fill(b []byte, seed uint64) { noise.Fill(b, seed) }

func TestNoDriver(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "install") {
		t.Errorf("Open of no library: %v", err)
	}
	if _, err := Open("libc.so.6"); !errors.Is(err, ErrMissing) {
		t.Errorf("Open of a library that is no driver: %v", err)
	}
}

func TestDevice(t *testing.T) {
	c := fake(t)
	dev, d := c.Device(), c.driver
	if n := must(d.Devices())(t); n != 1 {
		t.Errorf("%d devices", n)
	}
	if v := must(d.Version())(t); v != 13000 {
		t.Errorf("version %d", v)
	}
	got := fmt.Sprint(must(dev.Name())(t), must(dev.PCI())(t), must(dev.UUID())(t), must(dev.Bytes())(t), must(dev.Attribute(CapabilityMajor))(t))
	if want := fmt.Sprint("no GPU (fake 0)", "0000:01:00.0", "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00", 1<<30, 9); got != want {
		t.Errorf("the device is %s, want %s", got, want)
	}
	if !d.Has("cuMemAlloc_v2") || d.Has("cuNothing") {
		t.Error("Has is wrong about functions")
	}
	_, err := d.Device(7)
	var e *Error
	if !errors.Is(err, InvalidDevice) || !errors.As(err, &e) || e.Call != "cuDeviceGet" || e.Remedy == "" {
		t.Errorf("device 7: %v", err)
	}
}

// TestThreads copies from goroutines that the scheduler moves between threads, of
// which none has the context current.
func TestThreads(t *testing.T) {
	c := fake(t)
	const size = 1 << 16
	pool := alloc(t, c, 16*size)
	var all sync.WaitGroup
	for i := range 16 {
		s, at := stream(t, c), pool+DevicePtr(i*size)
		up, down := mapped(t, size), mapped(t, size)
		all.Go(func() {
			for round := range uint64(20) {
				fill(up, round+uint64(i)<<4)
				check(t, s.CopyToDevice(at, up))
				runtime.Gosched()
				check(t, s.CopyToHost(down, at))
				check(t, s.Synchronize())
				if !bytes.Equal(up, down) {
					t.Errorf("stream %d, round %d: other bytes came back", i, round)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestBatch(t *testing.T) {
	const n, size = 100, 1000
	for name, without := range map[string][]call{"CUDA 13": nil, "without batches": {cuMemcpyBatchAsync, cuMemcpyBatchAsync12}} {
		t.Run(name, func(t *testing.T) {
			c := fake(t)
			for _, f := range without {
				c.driver.at[f] = 0
			}
			s, pool := stream(t, c), alloc(t, c, n*size)
			up, down := mapped(t, n*size), mapped(t, n*size)
			fill(up, 1)
			check(t, c.Register(up, Portable|DeviceMap))
			defer func() { check(t, c.Unregister(up)) }()
			var there, back []Copy
			for i := range n {
				from, to := up[i*size:][:size], down[(n-1-i)*size:][:size]
				there = append(there, Copy{Device: pool + DevicePtr(i*size), Host: from})
				back = append(back, Copy{Device: pool + DevicePtr(i*size), Host: to, ToHost: true})
			}
			check(t, s.CopyBatch(nil))
			check(t, s.CopyBatch(there))
			check(t, s.CopyBatch(back))
			check(t, s.Synchronize())
			for i := range n {
				if !bytes.Equal(up[i*size:][:size], down[(n-1-i)*size:][:size]) {
					t.Fatalf("block %d has other bytes", i)
				}
			}
		})
	}
}

// TestHostTouch holds the stand-in to its promise: the host reaches device memory
// neither to read nor to write.
func TestHostTouch(t *testing.T) {
	c := fake(t)
	p := alloc(t, c, 4096)
	touch := func(fn func(*byte)) (err error) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { err, _ = recover().(error) }()
		fn(*(**byte)(unsafe.Pointer(&p)))
		return nil
	}
	var b byte
	if err := touch(func(at *byte) { b = *at }); err == nil {
		t.Errorf("the host read %d of device memory", b)
	}
	if err := touch(func(at *byte) { *at = 1 }); err == nil {
		t.Error("the host wrote device memory")
	}
}

func TestRefused(t *testing.T) {
	c := fake(t)
	s, p, b := stream(t, c), alloc(t, c, 4096), mapped(t, 2*4096)
	released := &Context{driver: c.driver, device: c.device}
	check(t, c.Register(b[:4096], Portable))
	for name, v := range map[string]struct {
		err  error
		want Code
	}{
		"no context":                     {func() error { _, err := released.Alloc(1); return err }(), InvalidContext},
		"more than there is":             {func() error { _, err := c.Alloc(1 << 40); return err }(), OutOfMemory},
		"over the end of an allocation":  {s.CopyToDevice(p+1, b[:4096]), InvalidValue},
		"over the edge of registrations": {s.CopyToDevice(p, b[1:4097]), InvalidValue},
		"the wrong direction":            {s.CopyToDevice(DevicePtr(uintptr(unsafe.Pointer(&b[0]))), b[:1]), InvalidValue},
		"registered twice":               {c.Register(b[:1], Portable), AlreadyRegistered},
		"nothing registered":             {c.Register(nil, Portable), InvalidValue},
		"not registered":                 {c.Unregister(b[4096:]), NotRegistered},
		"a word that is not registered":  {s.WriteValue(DevicePtr(uintptr(unsafe.Pointer(&b[4096]))), 1), InvalidValue},
		"freed twice":                    {c.Free(p + 8), InvalidValue},
		"its own handle":                 {func() error { _, err := c.Import(must(c.Export(p))(t)); return err }(), InvalidContext},
	} {
		var e *Error
		if !errors.Is(v.err, v.want) || !errors.As(v.err, &e) || e.Remedy == "" || Lost(v.err) {
			t.Errorf("%s: %v, want %v with its remedy", name, v.err, v.want)
		}
	}
	check(t, c.Unregister(b[:4096]))
}

// TestWords has a stream wait for a word of the host, and the host for one of the
// stream's, which comes behind the copy before it.
func TestWords(t *testing.T) {
	c := fake(t)
	s, p := stream(t, c), alloc(t, c, 4096)
	words, data := mapped(t, 4096), mapped(t, 4096)
	check(t, c.Register(words, Portable|DeviceMap))
	defer func() { check(t, c.Unregister(words)) }()
	at := must(c.Mapped(words))(t)
	start, end := (*uint32)(unsafe.Pointer(&words[0])), (*uint32)(unsafe.Pointer(&words[4]))
	fill(data, 9)
	want := bytes.Clone(data)
	e := must(c.NewEvent())(t)
	defer func() { check(t, e.Destroy()) }()

	check(t, s.CopyToDevice(p, data))
	check(t, s.WaitValue(at, 5))
	check(t, s.CopyToHost(data, p))
	check(t, s.WriteValue(at+4, 7))
	check(t, e.Record(s))
	if must(s.Done())(t) || must(e.Done())(t) {
		t.Error("a stream that waits is done")
	}
	if atomic.LoadUint32(end) != 0 {
		t.Error("the stream did not wait for its word")
	}
	after := stream(t, c)
	check(t, after.Wait(e))
	atomic.StoreUint32(start, 6) // past what is waited for
	check(t, after.Synchronize())
	if atomic.LoadUint32(end) != 7 || !bytes.Equal(data, want) || !must(e.Done())(t) || !must(s.Done())(t) {
		t.Error("behind the event the stream's word or bytes were not there")
	}
	check(t, e.Synchronize())
}

// TestLost tries that an operation's failure comes from later calls, and that the
// context is whole again after its release.
func TestLost(t *testing.T) {
	t.Run("the copy fails", func(t *testing.T) {
		c := fake(t)
		s, b := must(c.NewStream(0))(t), mapped(t, 4096)
		p := must(c.Alloc(4096))(t)
		fakecuda.Rules(t, "copy=719@2,copy~1")
		check(t, s.CopyToDevice(p, b))
		check(t, s.Synchronize())
		check(t, s.CopyToDevice(p, b))
		if err := s.Synchronize(); !errors.Is(err, LaunchFailed) || !Lost(err) {
			t.Errorf("Synchronize behind a copy that failed: %v", err)
		}
		if _, err := c.Alloc(1); !Lost(err) {
			t.Errorf("Alloc of a context that is lost: %v", err)
		}
		check(t, s.Destroy())
	})
	t.Run("the next context", func(t *testing.T) {
		c := fake(t)
		check(t, c.Free(must(c.Alloc(1))(t)))
	})
}

func TestRules(t *testing.T) {
	c := fake(t)
	fakecuda.Rules(t, "cuMemAlloc_v2=2@2,cuMemGetInfo_v2=999")
	check(t, c.Free(must(c.Alloc(1))(t)))
	if _, err := c.Alloc(1); !errors.Is(err, OutOfMemory) {
		t.Errorf("the second Alloc: %v", err)
	}
	check(t, c.Free(must(c.Alloc(1))(t)))
	if _, _, err := c.MemInfo(); !errors.Is(err, Unknown) {
		t.Errorf("MemInfo: %v", err)
	}
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]*Error{
		"cuMemAlloc_v2 of 8 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2): ask for less": {Call: "cuMemAlloc_v2", About: "8 bytes on GPU 0", Code: OutOfMemory, Remedy: "ask for less"},
		"cuInit: CUDA_ERROR 998 (998)":                         {Call: "cuInit", Code: 998},
		"cuX: the CUDA driver lacks a function: a newer one":   {Call: "cuX", Remedy: "a newer one"},
		"cuEventQuery: CUDA_ERROR_NOT_READY (600): wait a bit": {Call: "cuEventQuery", Code: NotReady, Remedy: "wait a bit"},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// TestIPC has another process change this one's device memory.
func TestIPC(t *testing.T) {
	c := fake(t)
	s, p, b := stream(t, c), alloc(t, c, 1<<16), mapped(t, 1<<16)
	fill(b, 3)
	check(t, s.CopyToDevice(p, b))
	check(t, s.Synchronize())
	h := must(c.Export(p))(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("CASCADE_TEST_IPC=%x", h[:]), "CASCADE_TEST_LIBRARY="+fakecuda.Library(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := bytes.Clone(b)
	for i := range want {
		want[i] ^= 0xff
	}
	check(t, s.CopyToHost(b, p))
	check(t, s.Synchronize())
	if !bytes.Equal(b, want) {
		t.Error("what the other process wrote is not here")
	}
}

// importer is the other process: it inverts the memory of a handle.
func importer(handle, library string) int {
	err := func() error {
		var h IPCHandle
		var raw []byte
		if _, err := fmt.Sscanf(handle, "%x", &raw); err != nil {
			return err
		}
		copy(h[:], raw)
		d, err := Open(library)
		if err != nil {
			return err
		}
		dev, err := d.Device(0)
		if err != nil {
			return err
		}
		c, err := dev.Retain()
		if err != nil {
			return err
		}
		p, err := c.Import(h)
		if err != nil {
			return err
		}
		s, err := c.NewStream(0)
		if err != nil {
			return err
		}
		b := make([]byte, 1<<16)
		err = errors.Join(s.CopyToHost(b, p), s.Synchronize())
		for i := range b {
			b[i] ^= 0xff
		}
		return errors.Join(err, s.CopyToDevice(p, b), s.Synchronize(), c.CloseImport(p), s.Destroy(), c.Release())
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestRealDriver opens the machine's driver, if it has one.
func TestRealDriver(t *testing.T) {
	d, err := Open("")
	if errors.Is(err, ErrNoDriver) {
		t.Skip("libcuda is missing: run this on a machine with a GPU")
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range must(d.Devices())(t) {
		dev := must(d.Device(i))(t)
		t.Log(must(dev.Name())(t), must(dev.PCI())(t), must(dev.Bytes())(t))
	}
}
