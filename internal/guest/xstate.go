package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The guests' kernel sets the vector registers of its processes by ptrace, and
// this machine's kernel takes them only in just the size that its CPU makes
// necessary (xstateregs_set). The images were built for one such size; on CPUs
// with more registers (AMX) or fewer no process of a guest would start.
const (
	builtXstate = 2696 // bytes: up to AVX-512 and protection keys

	// ptXstate is NT_X86_XSTATE, the kernel's word for these registers.
	ptXstate = 0x202
)

// setXstate is how the guests' kernel begins to set registers: it stores the size
// (movq $2696, 8(%rsp)) and the request (mov $PTRACE_SETREGSET, %edi). What lies
// behind its own copy of them is memory of its own, and says nothing: a header
// among the first 2696 bytes shows which registers are meant.
var setXstate = []byte{
	0x48, 0xc7, 0x44, 0x24, 0x08, builtXstate & 0xff, builtXstate >> 8, 0, 0,
	0xbf, 0x05, 0x42, 0, 0,
}

const (
	setXstateSize   = 5 // where the size is in setXstate
	setXstatePlaces = 2 // of setXstate in the image
)

// fitXstate returns the image of a guest's kernel for a machine whose registers
// take size bytes.
func fitXstate(kernel []byte, size int) ([]byte, error) {
	if n := bytes.Count(kernel, setXstate); n != setXstatePlaces {
		return nil, fmt.Errorf("registers of this CPU take %d bytes, the guests' kernel was built for %d, and is not as it was: its size stands there %d times, not %d; build it for this CPU (../shared/lustre/source)",
			size, builtXstate, n, setXstatePlaces)
	}
	fits := bytes.Clone(setXstate)
	binary.LittleEndian.PutUint32(fits[setXstateSize:], uint32(size))
	return bytes.ReplaceAll(kernel, setXstate, fits), nil
}

// fit has e use images that this machine's CPU can run, made beside the others
// where they are not yet.
func (e *Equipment) fit() error {
	size, err := xstateSize()
	if err != nil || size == builtXstate {
		return err
	}
	built := filepath.Join(e.images, "um")
	e.images = fmt.Sprintf("%s-xstate%d", e.images, size)
	if _, err := os.Stat(e.images); err == nil {
		return nil
	}
	kernel, err := os.ReadFile(filepath.Join(built, "linux"))
	if err != nil {
		return err
	}
	if kernel, err = fitXstate(kernel, size); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(e.images), "lustre-um-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	um := filepath.Join(tmp, "um")
	err = errors.Join(os.Mkdir(um, 0o755), os.WriteFile(filepath.Join(um, "linux"), kernel, 0o755),
		os.Symlink(filepath.Join(built, "initrd.gz"), filepath.Join(um, "initrd.gz")))
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, e.images); err != nil {
		if _, there := os.Stat(e.images); there != nil { // nobody else made them meanwhile
			return err
		}
	}
	return nil
}

// xstateSize asks this machine's kernel how many bytes the vector registers of a
// process take, as the guests' kernel hands them over.
func xstateSize() (int, error) {
	runtime.LockOSThread() // a process is traced by a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("trace a process: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var stopped unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &stopped, 0, nil); err != nil {
		return 0, fmt.Errorf("trace a process: %w", err)
	}
	registers := make([]byte, 1<<20)
	v := unix.Iovec{Base: &registers[0]}
	v.SetLen(len(registers))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(cmd.Process.Pid), ptXstate, uintptr(unsafe.Pointer(&v)), 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("read the vector registers of a process: %w", errno)
	}
	return int(v.Len), nil
}
