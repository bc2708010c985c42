package giobench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
)

// DeviceVerb is the hidden command whose process calls Device.
const DeviceVerb = "gio-device"

// cpuTrigger says what stands in for a GPU.
const cpuTrigger = "a thread of another process that may make no system call (seccomp)"

// ownDevice is this program as the device.
func ownDevice() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return []string{self, DeviceVerb}, nil
}

// DeviceMain makes a test program that Run has started as its device one, and ends it; in all others it does nothing.
func DeviceMain() {
	if len(os.Args) == 2 && os.Args[1] == DeviceVerb {
		fmt.Fprintln(os.Stderr, Device())
		os.Exit(1)
	}
}

// Device is the device of the region of descriptor 3, on a thread that may make
// no system call. It ends the process when the host stops it.
func Device() error {
	d, err := gio.OpenDevice(os.NewFile(3, "region"))
	if err != nil {
		return err
	}
	if err := d.SpinSealed(); err != nil {
		return err
	}
	unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	return nil
}

// device is a process that calls Device. It is stopped while others read, for it
// takes a core.
type device struct {
	*kit.Process
	os *os.Process
}

func startDevice(s *gio.Server, o Options) (*device, error) {
	f, err := s.File()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	cmd := exec.Command(o.Device[0], o.Device[1:]...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Env = []string{"GODEBUG=asyncpreemptoff=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a process that is stopped takes no other signal
	p, err := kit.Start("the device", o.Log, cmd)
	if err != nil {
		return nil, err
	}
	return &device{p, cmd.Process}, nil
}

func (d *device) signal(s syscall.Signal) error {
	if err := d.os.Signal(s); err != nil {
		return fmt.Errorf("bench: signal the device: %w", err)
	}
	return nil
}

func (d *device) pause() error                { return d.signal(syscall.SIGSTOP) }
func (d *device) resume() error               { return d.signal(syscall.SIGCONT) }
func (d *device) alive() error                { return d.Alive() }
func (d *device) cpu() (time.Duration, error) { return d.CPU() }

// stop ends the process; an error when it ended by a system call.
func (d *device) stop(q *gio.Queue) error {
	q.StopDevice()
	_ = d.resume() // it may have ended
	return d.Wait()
}

// word is what lies at an offset of the file.
func word(off uint64) uint64 {
	x := (off + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// isBlock reports whether p is what lies at an offset.
func isBlock(p []byte, off uint64) bool {
	var differs uint64
	for i := 0; i < len(p); i += 8 {
		differs |= binary.LittleEndian.Uint64(p[i:]) ^ word(off+uint64(i))
	}
	return differs == 0
}

// newData makes a file of n bytes in a directory of its own below dir, which no cache has, and returns what removes both.
func newData(dir string, n int64) (name string, remove func() error, err error) {
	home, err := os.MkdirTemp(dir, "cascade-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("bench: the directory to measure in: %w", err)
	}
	remove = func() error { return os.RemoveAll(home) }
	name = filepath.Join(home, "data")
	if err = writeFile(name, n); err == nil {
		err = kit.DropCache(home)
	}
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return name, remove, nil
}

// writeFile writes a file whose words depend on their offsets, and syncs it.
func writeFile(name string, n int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	p := make([]byte, BlockBytes)
	for off := int64(0); off < n && err == nil; off += BlockBytes {
		fill(p, uint64(off))
		_, err = f.Write(p)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("bench: write the file to read: %w", err)
	}
	return nil
}
