package gio

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"cascadekv/internal/uring/abi"

	"golang.org/x/sys/unix"
)

// What linux/io_uring.h lays down, besides what package abi has of it.
const (
	setupSQPoll    = 1 << 1
	setupAttachWQ  = 1 << 5
	setupDisabled  = 1 << 6
	setupNoMmap    = 1 << 14
	setupNoSQArray = 1 << 16

	registerBuffers      = 0
	registerFiles        = 2
	registerFilesUpdate  = 6
	registerRestrictions = 11
	registerEnable       = 12
	registerClone        = 30 // since 6.12

	restrictionRegisterOp    = 0
	restrictionSQEOp         = 1
	restrictionFlagsAllowed  = 2
	restrictionFlagsRequired = 3

	enterWakeup  = 1 << 1
	flagNeedWake = 1 << 0
)

// restriction is struct io_uring_restriction.
type restriction struct {
	opcode uint16
	value  uint8
	_      uint8
	_      [3]uint32
}

// uringEngine is one io_uring for each slot, in the slot's memory, all served by
// one thread of the kernel. Nothing that lies in them is believed: the kernel
// checks entries against its own lists, and when all I/Os have ended the kernel
// reports by a descriptor that is in no process.
type uringEngine struct {
	r       *region
	fds     []int
	pipe    int // becomes readable for errors when the kernel has let go of all rings
	quit    chan struct{}
	doorman chan struct{} // closed when it has ended
	ended   chan struct{}
}

func openUring(r *region, mem []byte, buffers []buffer, files []atomic.Int32, o Options) (_ engine, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("gio: %w", err)
	}
	e := &uringEngine{r: r, pipe: ends[1], quit: make(chan struct{}), doorman: make(chan struct{}), ended: make(chan struct{})}
	all := make([]int32, 0, len(files)+1)
	writable := o.Replaces
	for i := range files {
		f := files[i].Load()
		all = append(all, f)
		mode, err := unix.FcntlInt(uintptr(f), unix.F_GETFL, 0)
		writable = writable || f >= 0 && (err != nil || mode&unix.O_ACCMODE != unix.O_RDONLY)
	}
	all = append(all, int32(ends[0])) // the rings alone keep this end
	vec := make([]unix.Iovec, len(buffers))
	for k, b := range buffers {
		vec[k].Base = &mem[k*BufferBytes] // outside the heap
		vec[k].SetLen(int(b.bytes))
	}
	for i := range r.slots {
		if err = e.openRing(i, vec, all, writable, o); err != nil {
			break
		}
	}
	_ = unix.Close(ends[0]) // an empty pipe
	if err != nil {
		close(e.doorman)
		e.stop()
		<-e.ended
		return nil, err
	}
	go e.watch()
	return e, nil
}

// openRing makes the ring of a slot, restricts it and lets the kernel serve it.
func (e *uringEngine) openRing(i int, vec []unix.Iovec, files []int32, writable bool, o Options) error {
	s := &e.r.slots[i]
	p := abi.Params{Flags: setupSQPoll | abi.SetupCQSize | setupNoMmap | setupNoSQArray | setupDisabled, CQEntries: 2 * e.r.numIOCTX, SQThreadIdle: uint32(o.Idle.Milliseconds())}
	if i > 0 {
		p.Flags |= setupAttachWQ
		p.WQFD = uint32(e.fds[0])
	}
	p.CQ.Memory, p.SQ.Memory = addressOf(s.rings), addressOf(unsafe.SliceData(s.sqes))
	fd, err := abi.Setup(e.r.numIOCTX, &p)
	if err != nil {
		return fmt.Errorf("%w: io_uring_setup: %w", ErrUnsupported, err)
	}
	e.fds = append(e.fds, fd)
	if p.SQ.Head != 0 || p.SQ.Tail != 4 || p.CQ.Head != 8 || p.CQ.Tail != 12 || p.SQ.Flags != 36 || p.CQ.Completions != uint32(unsafe.Sizeof(rings{})) {
		return fmt.Errorf("%w: its rings lie elsewhere: %+v", ErrUnsupported, p)
	}
	if err := register(fd, registerFiles, unsafe.Pointer(unsafe.SliceData(files)), len(files)); err != nil {
		return err
	}
	if err := e.registerData(fd, vec); err != nil {
		return err
	}
	rules := []restriction{{opcode: restrictionSQEOp, value: opReadFixed}, {opcode: restrictionFlagsAllowed, value: flagFixedFile}, {opcode: restrictionFlagsRequired, value: flagFixedFile}}
	if writable {
		rules = append(rules, restriction{opcode: restrictionSQEOp, value: opWriteFixed})
	}
	if o.Replaces {
		rules = append(rules, restriction{opcode: restrictionRegisterOp, value: registerFilesUpdate}) // for who has the ring's descriptor: no client
	}
	if err := register(fd, registerRestrictions, unsafe.Pointer(unsafe.SliceData(rules)), len(rules)); err != nil {
		return err
	}
	return register(fd, registerEnable, nil, 0)
}

// filesUpdate is struct io_uring_files_update.
type filesUpdate struct {
	offset uint32
	_      uint32
	fds    uint64
}

func (e *uringEngine) replace(i, fd int) error {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	file := int32(fd)
	pinned.Pin(&file)
	for _, ring := range e.fds {
		update := filesUpdate{offset: uint32(i), fds: addressOf(&file)}
		if err := register(ring, registerFilesUpdate, unsafe.Pointer(&update), 1); err != nil {
			return err
		}
	}
	return nil
}

// cloneBuffers is struct io_uring_clone_buffers.
type cloneBuffers struct {
	from uint32
	_    [7]uint32
}

// registerData gives a ring the buffers: those of the first ring where the kernel
// can share them, which pins the memory and counts it against the limit once.
func (e *uringEngine) registerData(fd int, vec []unix.Iovec) error {
	if fd != e.fds[0] {
		clone := cloneBuffers{from: uint32(e.fds[0])}
		if register(fd, registerClone, unsafe.Pointer(&clone), 1) == nil {
			return nil
		}
	}
	return register(fd, registerBuffers, unsafe.Pointer(unsafe.SliceData(vec)), len(vec))
}

func addressOf[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// register hands something over to a ring. What the kernel refuses, because it is
// too old or the process may lock too little memory, another engine can do.
func register(fd, what int, p unsafe.Pointer, n int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), uintptr(what), uintptr(p), uintptr(n), 0, 0); errno != 0 {
		return fmt.Errorf("%w: io_uring_register %d of %d: %w (ENOMEM: raise the limit of locked memory, ulimit -l)", ErrUnsupported, what, n, errno)
	}
	return nil
}

// How often the doorman looks.
const (
	asleepTick = time.Millisecond     // while the kernel's thread sleeps
	awakeTick  = 5 * time.Millisecond // less than its least idle time matters little: it has no work then
)

// watch is the doorman: it wakes the kernel's thread when there are entries, or
// IOCBs that will have some soon. It makes at most one call for each ring a tick,
// whatever lies in the region. A wake-up that is sent before the thread first
// slept is lost, so it is repeated until the flag is gone.
func (e *uringEngine) watch() {
	defer close(e.doorman)
	var issued uint32
	for {
		tick := awakeTick
		tail := e.r.h.sqTail.Load()
		for i, fd := range e.fds {
			s := e.r.slots[i].rings
			if s.sqFlags.Load()&flagNeedWake == 0 {
				continue
			}
			tick = asleepTick
			if tail != issued || s.sqTail.Load() != s.sqHead.Load() {
				if _, err := abi.Enter(fd, 0, 0, enterWakeup); err == unix.EOWNERDEAD {
					e.r.h.engine.Store(engineEnded) // the kernel's thread is gone
				}
			}
		}
		issued = tail
		select {
		case <-e.quit:
			return
		default:
			time.Sleep(tick)
		}
	}
}

// stop closes the rings. The kernel cancels what has not begun.
func (e *uringEngine) stop() {
	close(e.quit)
	go func() {
		<-e.doorman
		for _, fd := range e.fds {
			_ = unix.Close(fd) // it cannot fail
		}
		for !released(e.pipe) {
		}
		_ = unix.Close(e.pipe)
		close(e.ended)
	}()
}

func (e *uringEngine) done() <-chan struct{} { return e.ended }

// released waits for a while until the other end of a pipe is closed by all who
// had it.
func released(pipe int) bool {
	fds := []unix.PollFd{{Fd: int32(pipe)}}
	n, err := unix.Poll(fds, 100)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}
