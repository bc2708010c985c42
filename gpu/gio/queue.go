package gio

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds a wait whose context has no deadline.
const patience = 30 * time.Second

// Op is the direction of an IOCB's I/Os.
type Op uint32

// Directions: into the data memory, and out of it.
const (
	Read Op = iota
	Write
)

// Event is a condition for a start: the word has reached a value, which may wrap:
// int32(word - Value) >= 0. The zero value, and a nil pointer, are no condition.
type Event struct {
	Word  int // 1 to Events; 0 for none
	Value uint32
}

// IOCB is a batch that the caller of GetIOCB has. Ctx is memory of the region,
// with NumIOCTX entries: fill in the first, then Set.
type IOCB struct {
	ID  uint32
	Ctx []IOCTX
	b   *iocb
}

// Set declares the first n entries of Ctx to be the IOCB's I/Os.
func (b *IOCB) Set(op Op, n int) { b.b.op, b.b.num = uint32(op), uint32(n) }

// Failed reports whether the I/O of an entry failed. It is valid after WaitCQE
// and until the IOCB is released or issued.
func (b *IOCB) Failed(i int) bool {
	return i < 0 || i >= MaxIOCTX || b.b.failures[i/32]&(1<<(i%32)) != 0
}

// Queue is the host's side of a region. It is safe for concurrent use; an IOCB is
// used by one goroutine at a time.
type Queue struct {
	r       *region
	data    []byte
	perSM   int
	gone    chan struct{}  // closed when the server's connection ended; nil without one
	closers []func() error // in this order
	device  struct {
		stop    chan struct{}
		done    chan struct{}
		cancels cancels
	}
	mu struct {
		sync.Mutex
		sqTail, cqHead uint32
		slots          []slotState
		closed         bool
	}
}

type slotState struct {
	state iocbState
	base  uint32 // of its next entries
	num   uint32 // of those under way
	none  bool   // of an IOCB that has ended: it was given up before it began
}

type iocbState uint8

const (
	free iocbState = iota
	owned
	issued
	ended
)

// InitQueue makes a queue of depth IOCBs, its engine and its device in this
// process. Close ends all of them and gives everything back.
func InitQueue(depth int, o Options) (*Queue, error) {
	o.Depth = depth
	s, err := Serve(o)
	if err != nil {
		return nil, err
	}
	q := s.Queue()
	q.StartDevice()
	q.closers = append([]func() error{func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return s.Close(ctx)
	}}, append(q.closers, func() error {
		select {
		case <-s.quiet: // so nothing but this holds up the end
			<-s.released
		default:
		}
		return nil
	})...)
	return q, nil
}

// Queue is a client in the server's own process, to be called before Close. A region
// has one, or a client that attaches. The server keeps its memory until the queue is closed too.
func (s *Server) Queue() *Queue {
	q := newQueue(s.r, s.data.mem, s.o.Device)
	s.users.Add(1)
	q.closers = []func() error{func() error { s.users.Done(); return nil }}
	return q
}

func newQueue(r *region, data []byte, f Facts) *Queue {
	q := &Queue{r: r, data: data, perSM: f.perSM()}
	q.mu.slots = make([]slotState, r.depth)
	return q
}

// Attach receives a region that a server sends, and returns a client of it, which
// has the connection from then on. It starts no device. Errors: ErrLayout, those
// of the connection, whose deadline bounds the wait.
func Attach(c *net.UnixConn, f Facts) (_ *Queue, err error) {
	ring, data, err := receive(c)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = unix.Close(ring), unix.Close(data) }() // mapped, or of no use
	r, err := mapRegion(ring)
	if err != nil {
		return nil, err
	}
	var n uint64
	for _, b := range r.buffers {
		n += b.bytes
	}
	mem, err := mapSealed(data)
	if err == nil && uint64(len(mem)) != n {
		_ = unix.Munmap(mem)
		err = fmt.Errorf("%w: data memory of %d bytes, described as %d", ErrLayout, len(mem), n)
	}
	if err != nil {
		_ = unix.Munmap(r.mem)
		return nil, err
	}
	q := newQueue(r, mem, f)
	q.gone = make(chan struct{})
	_ = c.SetDeadline(time.Time{}) // a connection that fails ends the next read
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Read(make([]byte, 1)) // the server sends nothing more: it ends with it
		close(q.gone)
	}()
	q.closers = []func() error{c.Close, func() error { <-ended; return nil },
		func() error { return unix.Munmap(q.r.mem) }, func() error { return unix.Munmap(q.data) }}
	return q, nil
}

// receive takes the two memfds of a server.
func receive(c *net.UnixConn) (ring, data int, err error) {
	oob := make([]byte, unix.CmsgSpace(2*4))
	p := make([]byte, 1)
	n, m, _, _, err := c.ReadMsgUnix(p, oob)
	if err != nil {
		return -1, -1, fmt.Errorf("gio: attach: %w", err)
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(oob[:m]); err == nil && len(messages) == 1 {
		fds, _ = unix.ParseUnixRights(&messages[0]) // none is an error below
	}
	if n == 1 && p[0] == version && len(fds) == 2 {
		return fds[0], fds[1], nil
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return -1, -1, fmt.Errorf("%w: the server sent version %d and %d descriptors", ErrLayout, p[0], len(fds))
}

// Data is the data memory: buffer i of an IOCTX begins at i GiB.
func (q *Queue) Data() []byte { return q.data }

// Word is an event's word, 1 to Events, which its caller raises. It has one
// writer.
func (q *Queue) Word(i int) *atomic.Uint32 { return &q.r.h.event[i-1].Uint32 }

// StartDevice starts a goroutine as the region's device.
func (q *Queue) StartDevice() {
	q.device.stop, q.device.done = make(chan struct{}), make(chan struct{})
	d := &Device{r: q.r, cancels: &q.device.cancels}
	go func() {
		defer close(q.device.done)
		d.run(q.device.stop)
	}()
}

// StopDevice asks the region's device, wherever it is, to end.
func (q *Queue) StopDevice() { q.r.h.stop.Store(1) }

// Close ends the client. Its IOCBs, Data and Words are of no use then. A device in
// another process must have ended. Error: ErrBusy of an engine of InitQueue.
func (q *Queue) Close() error {
	q.mu.Lock()
	closed := q.mu.closed
	q.mu.closed = true
	q.mu.Unlock()
	if closed {
		return nil
	}
	if q.device.stop != nil {
		close(q.device.stop)
		<-q.device.done
	}
	var first error
	for _, c := range q.closers {
		if err := c(); err != nil && first == nil {
			first = fmt.Errorf("gio: close: %w", err)
		}
	}
	return first
}

// GetIOCB returns n IOCBs that nobody uses, all of which start after event. It
// does not wait. Errors: ErrNoIOCB, ErrOption, ErrGone.
func (q *Queue) GetIOCB(n int, event *Event) ([]*IOCB, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.aliveLocked(); err != nil {
		return nil, err
	}
	var e Event
	if event != nil {
		e = *event
	}
	if e.Word < 0 || e.Word > Events || n < 0 {
		return nil, fmt.Errorf("%w: %d IOCBs after word %d", ErrOption, n, e.Word)
	}
	var ids []int
	for i := range q.mu.slots {
		if q.mu.slots[i].state == free && len(ids) < n {
			ids = append(ids, i)
		}
	}
	if len(ids) < n {
		return nil, fmt.Errorf("%w: %d of %d", ErrNoIOCB, len(ids), n)
	}
	got := make([]*IOCB, n)
	for k, i := range ids {
		s := &q.r.slots[i]
		q.mu.slots[i].state = owned
		s.iocb.num, s.iocb.op = 0, uint32(Read)
		s.iocb.eventWord, s.iocb.eventValue = uint32(e.Word-1), e.Value
		got[k] = &IOCB{uint32(i), s.ctx, s.iocb}
	}
	return got, nil
}

// Release gives IOCBs back that are not under way. Errors: ErrState.
func (q *Queue) Release(ids ...uint32) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		if id >= q.r.depth || q.mu.slots[id].state == free || q.mu.slots[id].state == issued {
			return fmt.Errorf("%w: release IOCB %d", ErrState, id)
		}
		q.mu.slots[id].state = free
	}
	return nil
}

// IssueIO hands IOCBs to the device, which starts each once its event has come,
// with at most as many I/Os under way as so many SMs have threads for; 0 for all
// at once. Until an IOCB ends its memory is the engine's. All are checked before
// the first is issued. Errors: ErrState, ErrInvalid, ErrGone.
func (q *Queue) IssueIO(ids []uint32, sms int) (err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.aliveLocked(); err != nil {
		return err
	}
	for k, id := range ids {
		if id >= q.r.depth || q.mu.slots[id].state != owned && q.mu.slots[id].state != ended {
			return fmt.Errorf("%w: issue IOCB %d", ErrState, id)
		}
		for _, other := range ids[:k] {
			if other == id {
				return fmt.Errorf("%w: issue IOCB %d twice", ErrState, id)
			}
		}
		if q.mu.slots[id].num, err = q.checkIOCB(id); err != nil {
			return err
		}
	}
	for _, id := range ids {
		s, b := &q.mu.slots[id], q.r.slots[id].iocb
		s.state, s.none = issued, false
		b.base, b.window = s.base, uint32(max(sms, 0)*q.perSM)
		b.failed, b.firstResult, b.firstFailed = 0, 0, 0
		clear(b.failures[:])
		q.device.cancels[id].Store(0)
		q.prepare(id, s.base, s.num)
		s.base += s.num
		q.r.h.sq[q.mu.sqTail%MaxDepth] = id
		q.mu.sqTail++
	}
	q.r.h.sqTail.Store(q.mu.sqTail)
	return nil
}

// checkIOCB finds mistakes of the caller, and returns the number of IOCTXs. The engine does not rely on it. Where the client is
// another process than the engine's it may change what it has filled in meanwhile; the number that counts is the one that was checked.
func (q *Queue) checkIOCB(id uint32) (num uint32, err error) {
	s := &q.r.slots[id]
	num, op := s.iocb.num, s.iocb.op
	if num == 0 || num > q.r.numIOCTX || op > uint32(Write) {
		return 0, fmt.Errorf("%w: IOCB %d has %d IOCTXs of operation %d", ErrInvalid, id, num, op)
	}
	for k, c := range s.ctx[:num] {
		if int(c.ID) >= len(q.r.buffers) || c.Bytes == 0 || c.Bytes > c.Length || bits.Len32(c.Bytes) > 31 || int64(c.Offset) < 0 ||
			c.Address > q.r.buffers[c.ID].bytes || uint64(c.Length) > q.r.buffers[c.ID].bytes-c.Address || c.File >= q.r.files {
			return 0, fmt.Errorf("%w: IOCTX %d of IOCB %d: %+v", ErrInvalid, k, id, c)
		}
	}
	return num, nil
}

// prepare writes the entries of an IOCB: gio_prepare of gio.h.
func (q *Queue) prepare(id, base, num uint32) {
	s := &q.r.slots[id]
	op := uint8(opReadFixed)
	if s.iocb.op == uint32(Write) {
		op = opWriteFixed
	}
	for k, c := range s.ctx[:num] {
		buffer := q.r.buffers[min(int(c.ID), len(q.r.buffers)-1)]
		s.sqes[(base+uint32(k))&(q.r.numIOCTX-1)] = submission{opcode: op, flags: flagFixedFile, file: int32(c.File), offset: c.Offset,
			addr: buffer.address + c.Address, len: c.Bytes, user: uint64(k), buffer: uint16(c.ID)}
	}
}

// Cancel has an IOCB that waits for its event end without having begun: WaitCQE returns ErrCancelled then, and its memory
// was not touched. One that has begun goes on, and one that is not under way stays as it is. ErrState where the queue's device is
// none of StartDevice: raise the event then.
func (q *Queue) Cancel(id uint32) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if id >= q.r.depth || q.device.stop == nil {
		return fmt.Errorf("%w: cancel IOCB %d", ErrState, id)
	}
	if q.mu.slots[id].state == issued {
		q.device.cancels[id].CompareAndSwap(0, cancelAsked)
	}
	return nil
}

// WaitCQE waits until an IOCB has ended, at most until ctx does, or 30 s where
// ctx has no deadline. The caller owns the IOCB then, and its memory. Errors:
// IOError, ErrTimeout, after which WaitCQE may be called once more, ErrCancelled, ErrGone,
// ErrState.
func (q *Queue) WaitCQE(ctx context.Context, id uint32) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	// Each look costs some 20 µs of CPU: a wait of many milliseconds may end a sixteenth late instead.
	pause, began := pacer{least: 20 * time.Microsecond}, time.Now()
	for {
		if done, err := q.reap(id); done {
			return err
		}
		pause.most = min(max(time.Since(began)/16, time.Millisecond/4), 4*time.Millisecond)
		if !pause.sleep(ctx.Done()) {
			return fmt.Errorf("%w: IOCB %d: %w", ErrTimeout, id, ctx.Err())
		}
	}
}

// reap takes what has ended, and reports whether id is part of it or cannot be.
func (q *Queue) reap(id uint32) (done bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	alive := q.aliveLocked()
	if alive == nil || !q.mu.closed {
		q.drainLocked()
	}
	switch {
	case q.mu.closed || id >= q.r.depth:
		return true, fmt.Errorf("%w: wait for IOCB %d", ErrState, id)
	case q.mu.slots[id].state == ended:
		return true, q.outcomeLocked(id)
	case q.mu.slots[id].state != issued:
		return true, fmt.Errorf("%w: wait for IOCB %d, which is not under way", ErrState, id)
	}
	return alive != nil, alive
}

// drainLocked takes the indexes in the CQ. The device is the client's own; an
// index that cannot be is ignored.
func (q *Queue) drainLocked() {
	tail := q.r.h.cqTail.Load()
	for n := 0; q.mu.cqHead != tail && n < MaxDepth; n++ {
		if id := q.r.h.cq[q.mu.cqHead%MaxDepth]; id < q.r.depth && q.mu.slots[id].state == issued {
			s := &q.mu.slots[id]
			s.state, s.none = ended, q.device.cancels[id].Load() == cancelDone
			if s.none { // the engine has seen none of its entries
				s.base -= s.num
			}
		}
		q.mu.cqHead++
	}
}

func (q *Queue) outcomeLocked(id uint32) error {
	b := q.r.slots[id].iocb
	if q.mu.slots[id].none {
		return fmt.Errorf("%w: IOCB %d", ErrCancelled, id)
	}
	if b.failed == 0 {
		return nil
	}
	e := &IOError{ID: id, Failed: int(b.failed), First: int(b.firstFailed)}
	if b.firstResult < 0 {
		e.Errno = unix.Errno(-b.firstResult)
	} else {
		e.Bytes = int(b.firstResult)
	}
	return e
}

// aliveLocked is ErrGone when nobody serves the region any more.
func (q *Queue) aliveLocked() error {
	if q.mu.closed || q.r.h.engine.Load() == engineEnded {
		return ErrGone
	}
	select {
	case <-q.gone:
		return ErrGone
	default: // a nil channel too
		return nil
	}
}
