package uring

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"
	"unsafe"

	"cascadekv/internal/uring/abi"

	"golang.org/x/sys/unix"
)

// Errors of this package. Test with errors.Is.
var (
	ErrUnsupported = errors.New("uring: this kernel does not offer io_uring, or forbids it")
	ErrClosed      = errors.New("uring: ring is closed")
	ErrBusy        = errors.New("uring: reads are still in the kernel: check the file system's servers")
)

// Ring is one instance of io_uring. All methods are safe for concurrent use.
type Ring struct {
	fd    int
	rings []byte // both queues
	sqes  []byte // the submissions themselves

	slots  chan uint32   // free places
	closed chan struct{} // Close was called
	done   chan struct{} // nothing is under way any more, and never will be

	bell int // an eventfd: there is something to hand over

	mu      sync.Mutex
	sq      submissions
	ops     []*operation // by slot
	running int
	asleep  bool // the driver waits in the kernel and has to be woken for what is new
	hears   bool // the kernel wakes it when the bell rings
	closing bool

	cq completions // the driver's
}

// operation is one read under way. The ring's list keeps its memory alive.
type operation struct {
	vec  []unix.Iovec
	bufs [][]byte
	res  int32
	done chan struct{}
}

// Completions that belong to no slot.
const (
	userBell   = 1<<64 - 1 - iota // it rang
	userCancel                    // what became of a cancellation: the read's own completion shows it
)

// maxEntries is the largest ring that kernels make.
const maxEntries = 32768

// Open makes a ring for up to depth reads at once. Errors match ErrUnsupported.
func Open(depth int) (*Ring, error) {
	if depth < 1 || depth > maxEntries {
		return nil, fmt.Errorf("uring: %w: depth %d, want 1 to %d", unix.EINVAL, depth, maxEntries)
	}
	// Beside each read its cancellation may wait to be handed over, with that of
	// the read that had its slot before, and the poll of the bell.
	entries := min(uint32(1)<<bits.Len(uint(3*depth+1)), maxEntries)
	// A read may come with its own cancellation and a late one of the read
	// that had its slot before.
	p := abi.Params{Flags: setupClamp | abi.SetupCQSize, CQEntries: 2 * entries}
	fd, err := abi.Setup(entries, &p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; see kernel.io_uring_disabled and the container's seccomp profile", ErrUnsupported, err)
	}
	r := &Ring{fd: fd, bell: -1, closed: make(chan struct{}), done: make(chan struct{})}
	if err = r.mapQueues(&p); err == nil {
		err = r.prove()
	}
	if err == nil {
		r.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		r.unmap()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	limitWorkers(fd, uint32(depth))
	depth = min(depth, int(p.SQEntries-1)/3)
	r.ops = make([]*operation, depth)
	r.slots = make(chan uint32, depth)
	for i := range depth {
		r.slots <- uint32(i)
	}
	go r.drive()
	return r, nil
}

func (r *Ring) mapQueues(p *abi.Params) (err error) {
	if p.Features&featNeeded != featNeeded {
		return fmt.Errorf("features %#x, want %#x, which Linux 5.5 has", p.Features, featNeeded)
	}
	size := max(p.SQ.Array+4*p.SQEntries, p.CQ.Completions+p.CQEntries*uint32(unsafe.Sizeof(completion{})))
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offRing, int(size), prot, flags); err != nil {
		return fmt.Errorf("map the queues: %w", err)
	}
	if r.sqes, err = unix.Mmap(r.fd, offSubmissions, int(p.SQEntries)*int(unsafe.Sizeof(submission{})), prot, flags); err != nil {
		return fmt.Errorf("map the submissions: %w", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sq = submissions{
		head: at(p.SQ.Head), tail: at(p.SQ.Tail), mask: *at(p.SQ.Mask),
		array:   unsafe.Slice(at(p.SQ.Array), p.SQEntries),
		entries: unsafe.Slice((*submission)(unsafe.Pointer(&r.sqes[0])), p.SQEntries),
	}
	r.cq = completions{
		head: at(p.CQ.Head), tail: at(p.CQ.Tail), mask: *at(p.CQ.Mask),
		entries: unsafe.Slice((*completion)(unsafe.Pointer(&r.rings[p.CQ.Completions])), p.CQEntries),
	}
	return nil
}

// prove sends a submission that does nothing there and back.
func (r *Ring) prove() error {
	r.sq.push(submission{opcode: opNop, user: userBell})
	if _, err := abi.Enter(r.fd, 1, 1, enterGetEvents); err != nil {
		return err
	}
	if c, ok := r.cq.pop(); !ok || c.user != userBell || c.res != 0 {
		return fmt.Errorf("an empty operation came back as %+v, %v", c, ok)
	}
	return nil
}

func (r *Ring) unmap() {
	for _, p := range [][]byte{r.rings, r.sqes} {
		if p != nil {
			_ = unix.Munmap(p) // mapped by us: this cannot fail
		}
	}
	_ = unix.Close(r.fd) // it holds no data
	if r.bell >= 0 {
		_ = unix.Close(r.bell)
	}
}

// Depth is how many reads can be under way at once.
func (r *Ring) Depth() int { return len(r.ops) }

func (r *Ring) complete(c completion) {
	switch c.user {
	case userBell:
		r.heard()
		return
	case userCancel:
		return
	}
	slot := uint32(c.user)
	r.mu.Lock()
	op := r.ops[slot]
	r.ops[slot] = nil
	r.running--
	r.mu.Unlock()
	op.res = c.res
	close(op.done)
	r.slots <- slot
}

// maxAgain bounds how often the kernel is asked again for what it did not do.
const maxAgain = 100

// passes reports whether an error means "try again".
func passes(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY)
}

// Close refuses further reads, cancels those under way and waits for their end
// or for ctx. An error matches ErrBusy: then the ring gives back what it holds
// when the last read ends; Done is closed then. Calls after the first only
// wait.
func (r *Ring) Close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closing {
		r.closing = true
		close(r.closed)
	}
	r.mu.Unlock()
	for pause := range pauses {
		r.mu.Lock()
		for slot := range r.ops {
			r.cancelLocked(uint32(slot))
		}
		r.ringLocked()
		r.mu.Unlock()
		select {
		case <-r.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}

// Done is closed when the ring was closed and the kernel no longer touches any
// buffer.
func (r *Ring) Done() <-chan struct{} { return r.done }

// cancelLocked asks the kernel to end the read in a slot, if there is one, unless
// the queue is so full that it is kept for reads. A failure leaves the read to its
// own end, or to another try. The caller holds mu, and rings.
func (r *Ring) cancelLocked(slot uint32) {
	if r.ops[slot] != nil && int(r.sq.room()) > len(r.ops)+1 {
		r.sq.push(submission{opcode: opAsyncCancel, fd: -1, addr: uint64(slot), user: userCancel})
	}
}
