package earlysignal

import (
	"os"
	"syscall"
	"unsafe"
)

// ended are the signals that are listened to.
var ended = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// action is what a process does with a signal, as the kernel has it on amd64 and
// arm64. The zero value is the default.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// setAction changes what this process does with a signal, past the Go runtime,
// and returns what it did before.
func setAction(sig os.Signal, to action) (was action) {
	if s, ok := sig.(syscall.Signal); ok {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(&was)), unsafe.Sizeof(to.mask), 0, 0)
	}
	return was
}
