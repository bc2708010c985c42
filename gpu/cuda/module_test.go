package cuda

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/internal/testing/fakecuda"
)

// TestLaunch runs the kernel of gpu/gio, all of whose parameters are looked at: it takes the depth from
// the ring, and ends by itself when nothing has happened for as long as the last one says.
func TestLaunch(t *testing.T) {
	c := fake(t)
	s, ring, state := stream(t, c), mapped(t, 1<<20), alloc(t, c, int64(gio.KernelStateBytes(1)))
	binary.LittleEndian.PutUint32(ring[12:], 1)
	check(t, c.Register(ring, Portable|DeviceMap))
	defer func() { check(t, c.Unregister(ring)) }()
	at := uint64(must(c.Mapped(ring))(t))
	m := must(c.LoadModule(gio.KernelPTX()))(t)
	f := must(m.Function(gio.KernelName))(t)
	patience := uint64(time.Millisecond)

	check(t, s.Launch(f, 1, 64, at, uint64(state), patience))
	check(t, s.Synchronize())
	if got := binary.LittleEndian.Uint32(ring[320:]); got != 2 {
		t.Errorf("the device's word is %d behind the kernel", got)
	}
	for name, err := range map[string]error{
		"threads of another depth":  s.Launch(f, 1, 96, at, uint64(state), patience),
		"two blocks":                s.Launch(f, 2, 64, at, uint64(state), patience),
		"memory of another's state": s.Launch(f, 1, 64, at, uint64(state)+8, patience),
	} {
		if !errors.Is(err, InvalidValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Function("nothing"); !errors.Is(err, NotFound) {
		t.Errorf("a function that is not there: %v", err)
	}
	if _, err := c.LoadModule("no program"); !errors.Is(err, InvalidPTX) || Lost(err) {
		t.Errorf("a program that is none: %v", err)
	}
	check(t, m.Unload())
	if Lost(LaunchOutOfResources) || !Lost(LaunchTimeout) {
		t.Error("what loses a context: too large a launch does not, one that is ended does")
	}
}

// TestGreen has the parts of compute capability 9: of two SMs, whose number is rounded up.
func TestGreen(t *testing.T) {
	c := fake(t)
	all := must(c.Device().SMs())(t)
	if n := must(c.Device().Attribute(Multiprocessors))(t); all.Count() != n {
		t.Errorf("%d SMs, the attribute has %d", all.Count(), n)
	}
	for least, want := range map[int]int{1: 2, 2: 2, 3: 4, 20: 20} {
		part := must(all.Split(least))(t)
		if part.Count() != want {
			t.Errorf("of at least %d SMs: %d, want %d", least, part.Count(), want)
		}
		check(t, must(c.NewGreen(part))(t).Destroy())
	}
	if _, err := all.Split(21); !errors.Is(err, InvalidPartition) {
		t.Errorf("more SMs than there are: %v", err)
	}
	if _, err := c.NewGreen(SMs{}); !errors.Is(err, InvalidValue) {
		t.Errorf("a green context of no SMs: %v", err)
	}
	c.driver.at[cuDeviceGetDevResource] = 0
	if _, err := c.Device().SMs(); !errors.Is(err, ErrMissing) {
		t.Errorf("a driver before CUDA 12.4: %v", err)
	}
}

func TestCuFile(t *testing.T) {
	if _, err := OpenFiles(filepath.Join(t.TempDir(), "none.so")); !errors.Is(err, ErrNoCuFile) {
		t.Errorf("no library: %v", err)
	}
	if _, err := OpenFiles("libc.so.6"); !errors.Is(err, ErrMissing) {
		t.Errorf("a library that is not cuFile: %v", err)
	}
	library := fakecuda.Library(t)
	f := must(OpenFiles(library))(t)
	file := must(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer func() { check(t, file.Close()) }()
	check(t, f.TryFile(file))
	dir := must(os.Open(t.TempDir()))(t)
	defer func() { check(t, dir.Close()) }()
	var e *FileError
	if err := f.TryFile(dir); !errors.Is(err, FileInvalidType) || !errors.As(err, &e) || e.Call != "cuFileHandleRegister" || e.About != dir.Name() {
		t.Errorf("a directory: %v", err)
	}
	check(t, f.Close())
	fakecuda.Rules(t, "cuFileDriverOpen=5001")
	if _, err := OpenFiles(library); !errors.Is(err, FileNotInitialized) || !strings.Contains(err.Error(), "nvidia-fs") {
		t.Errorf("a driver that does not open: %v", err)
	}
	fakecuda.Rules(t, "cuFileDriverOpen=5011")
	if _, err := OpenFiles(library); !errors.Is(err, FileCUDAError) || !errors.Is(err, NoDevice) {
		t.Errorf("a driver that the CUDA driver fails: %v", err)
	}
	with := &FileError{Call: "cuFileDriverOpen", Code: FileCUDAError, Driver: NoDevice}
	if want := "cuFileDriverOpen: CU_FILE_CUDA_DRIVER_ERROR, CUDA_ERROR_NO_DEVICE (5011): see the code of the driver"; with.Error() != want || !errors.Is(with, NoDevice) || !errors.Is(with, FileCUDAError) {
		t.Errorf("%q, want %q", with, want)
	}
}
