package segment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cascadekv/internal/vfs"
)

// Read is one block of a ReadBatch.
type Read struct {
	Ref *Ref
	Dst []byte // len == Ref.Info().Size

	// Done, when not nil, is called once with the block's outcome, as soon as
	// there is one and before ReadBatch returns, from any goroutine. It must
	// return soon.
	Done func(error)
}

// batchDepth bounds the calls of one batch that are under way at once; those of
// all batches together are bounded by Options.Readers.
const batchDepth = 16

// ReadBatch reads many blocks, each straight into its Dst and verified as by
// Ref.ReadInto, faster than one by one: in the order of their places, neighbours
// with one call, many calls at once. The result has one error for each read,
// nil when it succeeded, and with the meaning that it has for ReadInto; what
// happens to one block does not happen to the others. When ctx ends first, the
// blocks that were read by then are good, the error of one whose memory may
// still be written to is a *Busy, and the others were never begun.
func (s *Store) ReadBatch(ctx context.Context, reads []Read) []error {
	b := &batch{s: s, ctx: ctx, blocks: make([]pending, len(reads)), done: make(chan struct{})}
	errs := make([]error, len(reads))
	for i, r := range reads {
		switch {
		case r.Ref.s != s:
			errs[i] = fmt.Errorf("%w: a reference of another store", ErrBadItem)
		case int64(len(r.Dst)) != r.Ref.loc.info.Size:
			errs[i] = fmt.Errorf("%w: %d bytes of room for %d", ErrBadItem, len(r.Dst), r.Ref.loc.info.Size)
		case ctx.Err() != nil:
			errs[i] = unavailable("read of "+r.Ref.loc.info.ID.String(), ctx.Err())
		default:
			b.add(i, r)
		}
		b.blocks[i].err = errs[i]
		if errs[i] != nil {
			r.tell(errs[i])
		}
	}
	if len(b.extents) == 0 && len(b.small) == 0 {
		return errs
	}
	b.start()
	select {
	case <-b.done:
	case <-ctx.Done():
	}
	b.leave() // also when all workers have ended: ctx may have ended them
	b.telling.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range errs {
		errs[i] = b.blocks[i].err
	}
	return errs
}

// tell passes the outcome on.
func (r Read) tell(err error) {
	if r.Done != nil {
		r.Done(err)
	}
}

// batch is one ReadBatch.
type batch struct {
	s       *Store
	ctx     context.Context
	extents []wanted
	small   []int // blocks without bytes
	calls   []call
	workers sync.WaitGroup
	done    chan struct{}  // all workers have ended
	telling sync.WaitGroup // calls of Read.Done

	mu     sync.Mutex
	blocks []pending
	next   int  // call to begin
	left   bool // the caller has gone: no call is begun any more
}

// pending is one block of a batch. Its last call to end completes it.
type pending struct {
	read   Read
	loc    *location
	dst    []byte
	at     int           // in dst: where the payload as stored goes
	calls  int           // that have not ended
	shared bool          // one of its calls is of other blocks too
	fault  error         // of one of its calls
	ready  bool          // err is final
	err    error         // what the caller gets
	ended  chan struct{} // made when the caller leaves before ready
}

func (b *batch) add(i int, r Read) {
	b.blocks[i].read, b.blocks[i].loc, b.blocks[i].dst = r, r.Ref.loc, r.Dst
	if len(r.Dst) == 0 {
		b.small = append(b.small, i)
		return
	}
	loc := r.Ref.loc
	b.blocks[i].at = b.s.landing(loc.as, r.Dst)
	b.extents = append(b.extents, loc.wanted(i))
}

// start plans the calls and lets workers make them.
func (b *batch) start() {
	b.calls = coalesce(b.extents)
	if waiting := len(b.calls) - batchDepth; waiting >= adviseFrom {
		b.s.advise(b.extents)
	}
	for _, c := range b.calls {
		for _, p := range c.parts {
			one := &b.blocks[p.block]
			one.calls++
			one.shared = one.shared || len(c.parts) > 1
		}
	}
	b.hold(1)
	for _, i := range b.small {
		b.complete(i)
	}
	for range min(len(b.calls), batchDepth, cap(b.s.reads)) {
		b.workers.Go(b.work)
	}
	go func() {
		b.workers.Wait()
		b.hold(-1)
		close(b.done)
	}()
}

// hold keeps the files of the batch and the store open: its calls may outlive
// the caller's references.
func (b *batch) hold(n int) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for i := range b.blocks {
		loc := b.blocks[i].loc
		switch {
		case loc == nil:
		case n > 0:
			loc.file.users++
		default:
			b.s.unuseLocked(loc.file)
		}
	}
	b.s.jobs += n
	b.s.idle.Broadcast()
}

// work makes calls until there is none left. While one hangs, another worker
// makes the others.
func (b *batch) work() {
	for {
		select {
		case b.s.reads <- struct{}{}:
		case <-b.ctx.Done():
			return
		}
		held := b.s.reads.taken()
		c := b.take()
		if c == nil {
			held.end()
			return
		}
		b.workers.Add(1)
		spare := time.AfterFunc(slowAfter, func() {
			defer b.workers.Done()
			b.work()
		})
		n, err := b.read(c)
		replaced := !spare.Stop()
		held.end()
		b.finish(c, n, err)
		if replaced {
			return
		}
		b.workers.Done()
	}
}

// take returns the next call, or nil.
func (b *batch) take() *call {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left || b.next == len(b.calls) {
		return nil
	}
	b.next++
	return &b.calls[b.next-1]
}

// read makes one call: n bytes of it are right.
func (b *batch) read(c *call) (n int64, err error) {
	h, err := c.file.open(b.s.fs)
	if err != nil {
		return 0, err
	}
	bufs, gaps, err := b.buffers(c)
	if err != nil {
		return 0, err
	}
	n, err = vfs.Preadv(b.ctx, h, bufs, c.off)
	if gaps != nil {
		b.s.access.gaps.Put(gaps)
	}
	b.s.forget(h, c.off, n)
	return n, err
}

// buffers returns where the bytes of a call go. All gaps share one piece of
// memory, which goes back when the call has ended.
func (b *batch) buffers(c *call) (bufs [][]byte, gaps []byte, err error) {
	bufs = make([][]byte, 0, 2*len(c.parts))
	for _, p := range c.parts {
		if p.gap > 0 && gaps == nil {
			if gaps, err = b.s.access.gaps.Get(); err != nil {
				return nil, nil, err
			}
		}
		one := &b.blocks[p.block]
		bufs = append(bufs, gaps[:p.gap], one.dst[one.at:][p.from:p.from+p.size])
	}
	return bufs, gaps, nil
}

// finish counts an ended call with each of its blocks.
func (b *batch) finish(c *call, n int64, err error) {
	at := int64(0)
	for _, p := range c.parts {
		at += p.gap + p.size
		b.mu.Lock()
		one := &b.blocks[p.block]
		if err != nil && at > n {
			one.fault = err
		}
		one.calls--
		last := one.calls == 0
		b.mu.Unlock()
		if last {
			b.complete(p.block)
		}
	}
}

// complete decides what became of a block whose calls have ended. A fault of a
// call that was not its alone is not its own: it is read again by itself.
func (b *batch) complete(i int) {
	b.mu.Lock()
	one, left := b.blocks[i], b.left
	b.mu.Unlock()
	var err error
	switch {
	case one.fault == nil:
		err = b.s.verify(one.loc, one.dst, one.at)
	case left:
		err = unavailable("read of "+one.loc.info.ID.String(), one.fault)
	case !one.shared && !errors.Is(one.fault, vfs.ErrStale):
		err = b.s.readFailed(one.loc, one.fault)
	default:
		err = b.alone(one)
	}
	b.settle(i, err)
}

// alone reads one block by itself.
func (b *batch) alone(one pending) error {
	if b.ctx.Err() == nil {
		select {
		case b.s.reads <- struct{}{}:
			defer b.s.reads.taken().end()
			return b.s.read(one.loc, one.dst)
		case <-b.ctx.Done():
		}
	}
	return unavailable("read of "+one.loc.info.ID.String(), b.ctx.Err())
}

// settle makes a block's outcome final and tells it, or that the block's memory
// is free when its caller has left.
func (b *batch) settle(i int, err error) {
	b.mu.Lock()
	one := &b.blocks[i]
	if one.ended != nil {
		b.mu.Unlock()
		close(one.ended)
		return
	}
	one.ready, one.err = true, err
	b.telling.Add(1)
	b.mu.Unlock()
	defer b.telling.Done()
	one.read.tell(err)
}

// leave gives up what is not finished.
func (b *batch) leave() {
	for _, i := range b.abandon(b.ctx.Err()) {
		b.blocks[i].read.tell(b.blocks[i].err)
	}
}

// abandon makes the outcomes of all blocks final, and returns those that were
// not before.
func (b *batch) abandon(cause error) (unfinished []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	for _, c := range b.calls[b.next:] {
		for _, p := range c.parts {
			one := &b.blocks[p.block]
			one.fault = cause
			if one.calls--; one.calls == 0 { // no call of it runs
				one.ready, one.err = true, unavailable("read of "+one.loc.info.ID.String()+": it was not begun", cause)
				unfinished = append(unfinished, p.block)
			}
		}
	}
	b.next = len(b.calls)
	for i := range b.blocks {
		one := &b.blocks[i]
		if one.loc != nil && !one.ready {
			one.ended = make(chan struct{})
			one.err = &Busy{what: "read of " + one.loc.info.ID.String(), cause: cause, done: one.ended}
			unfinished = append(unfinished, i)
		}
	}
	return unfinished
}
