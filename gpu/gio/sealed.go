package gio

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SpinSealed is Spin on a thread to which every system call but exit_group(2) is
// forbidden: the first one kills the process. It shows that a device needs none,
// and bounds what one can do. It is for a process that does nothing else, started
// with GODEBUG=asyncpreemptoff=1, for the runtime interrupts threads otherwise.
// When it returns nil the thread is still sealed: all that the caller can do is
// unix.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0). Errors: those of seccomp.
func (d *Device) SpinSealed() error {
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_EXIT_GROUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("gio: no_new_privs: %w", err)
	}
	runtime.Gosched() // a new slice of time, so that the runtime does not ask for the thread below
	if errno := d.seal(&program); errno != 0 {
		return fmt.Errorf("gio: seccomp: %w", errno)
	}
	return nil
}

// seal has no place at which the runtime could take over once the filter holds.
//
//go:nosplit
func (d *Device) seal(program *unix.SockFprog) unix.Errno {
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(program))); errno != 0 {
		return errno
	}
	d.Spin()
	return 0
}
