package cpus

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// semaphore bounds the goroutines that keep their place in Go's scheduler (their
// P) while they sleep in the kernel. A wait that the scheduler sees costs more than
// itself where it takes some microseconds only: it wakes the runtime's monitor, which
// looks every 20 µs for places to take away, and who lost its own finds another on
// another thread. Nobody else can use a place that is kept, so no more than half of them
// are, for moments; the runtime gets one back at once by the signal with which it
// stops any goroutine. It may be used by any goroutine.
type semaphore struct {
	limit func() int32
	taken atomic.Int32
}

// sleepers is of this process, as the scheduler's places are.
var sleepers = semaphore{limit: sync.OnceValue(func() int32 { return int32(runtime.GOMAXPROCS(0) / 2) })}

func (s *semaphore) tryAcquire() bool {
	if s.taken.Add(1) <= s.limit() {
		return true
	}
	s.taken.Add(-1)
	return false
}

func (s *semaphore) release() { s.taken.Add(-1) }

// TryKeepPlace reports whether the caller may keep its place in Go's scheduler while it
// sleeps in the kernel for a moment, by a call that the scheduler does not see
// (unix.RawSyscall) and that ends with a signal, as ppoll does. LeavePlace ends that. It
// may be called from any goroutine.
func TryKeepPlace() bool { return sleepers.tryAcquire() }

// LeavePlace is called once for each TryKeepPlace that returned true.
func LeavePlace() { sleepers.release() }
