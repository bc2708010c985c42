package netio

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spinner decides who watches a socket actively for a moment instead of going
// to sleep. To wake a thread whose core sleeps takes microseconds, in a virtual
// machine some 30: as long as it takes to copy a piece of a value. A client in a
// loop is served without those waits by a thread that stays awake; where others
// have use for the core, a thread that stays awake is in their way. So one
// connection of a server watches at a time, while no other's value arrives, not
// after small values (see watchFrom), and only as long as that pays (see
// spinCredit). It may be used by any goroutine.
type spinner struct {
	window   time.Duration // longest watch; 0: none
	arriving atomic.Int32  // values that are on their way
	taken    atomic.Bool   // somebody watches
}

// spinCredit counts down by the watches of a connection that were in vain; at 0 it
// watches no more, until a wait has ended so soon that a watch would have seen
// the end.
type spinCredit int8

const fullCredit spinCredit = 4

// watchFrom is how many bytes of values must have gone through the socket since the
// connection last waited for a command, if any did, for it to watch for the next. A
// client and a server that exchange small values run best in turns on one core, whose
// cache has what the other has just written; with large ones the client makes ready
// the next value on its core while the server stores the last. So does a client whose
// values go through shared memory: the STOREs of the Python client take a fifth longer
// without the watch. Rates of `cascade bench resp` without it, as parts of those with
// it, on two cores:
//
//	           set, 1   get, 1   set, 8   get, 8 connections
//	4 KiB       1.50     1.34     1.20     1.43
//	16 KiB      1.28     1.35     1.15     1.30
//	128 KiB     1.32     1.32     1.15     1.25
//	512 KiB     1.01     1.29     1.06     1.06
//	1 MiB       0.95     1.15     1.02     0.99
//	2 MiB       0.86     0.92     1.01     0.99
const watchFrom = 3 << 19

// watchedReply is the least reply that counts as a value.
const watchedReply = 1 << 10

// watchesForNext watches for the next command, unless small values went through the
// socket.
func (c *Conn) watchesForNext() bool {
	return (c.exchanged == 0 || c.exchanged >= watchFrom) && c.spin.watch(&c.spinCredit, 0, c.comes) == watchedData
}

// comes reports whether there is something to read now.
func (c *Conn) comes() bool { return c.pollRaw(0) }

// watchResult is what came of a watch.
type watchResult int

const (
	notWatched watchResult = iota // nobody watched, or not to the end: there is other work
	watchedInVain
	watchedData
)

// watch calls comes until that is true, or as long as it pays. own is 1 for who is
// counted in arriving, else 0.
func (s *spinner) watch(credit *spinCredit, own int32, comes func() bool) watchResult {
	if s.window == 0 || *credit == 0 || s.arriving.Load() != own || !s.taken.CompareAndSwap(false, true) {
		return notWatched
	}
	defer s.taken.Store(false)
	for end := time.Now().Add(s.window); s.arriving.Load() == own; {
		if comes() {
			*credit = fullCredit
			return watchedData
		}
		if time.Now().After(end) {
			*credit--
			return watchedInVain
		}
	}
	return notWatched
}

// slept learns from a wait whether to watch again: it took long enough to wake
// up that a watch may have ended in time.
func (s *spinner) slept(credit *spinCredit, d time.Duration) {
	if *credit == 0 && d < 4*s.window {
		*credit = 1
	}
}

// moveAway moves the calling thread to another core than the one it is on, if
// it may run on any. The kernel likes to wake who waits for a socket on the core
// of who wrote to it, so that a client in the middle of a value can come to wait
// for the very core that watches for its bytes, while others sleep.
func moveAway() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil { // a machine of more cores than fit
		return
	}
	others := allowed
	if others.Clear(int(currentCore())); others.Count() == 0 || unix.SchedSetaffinity(0, &others) != nil {
		return
	}
	_ = unix.SchedSetaffinity(0, &allowed) // it was allowed before
}

// currentCore is the number of the core that the calling thread is on, or was a
// moment ago.
func currentCore() (n uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0) // every kernel has it
	return n
}

// yielded lets another thread have this core, and reports whether one did: with none the
// kernel returns at once.
func yielded() bool {
	began := time.Now()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it always succeeds
	return time.Since(began) > atOnce
}

// atOnce is longer than a call of the kernel that does nothing takes.
const atOnce = 3 * time.Microsecond
