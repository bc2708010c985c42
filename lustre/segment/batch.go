package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/fault"
	"cascadekv/internal/inject"
	"cascadekv/internal/stack"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// batchDepth bounds the calls of one batch that are under way at once; those of
// all batches together are bounded by Options.Readers.
const batchDepth = 16

// ReadBatch reads many blocks, each straight into its Dst and verified as by
// Ref.ReadInto or ReadPlace, faster than one by one: in the order of their places,
// neighbours with one call, many calls at once. The result has one error for each
// read, nil when it succeeded, and with the meaning that it has for one alone; what
// happens to one block does not happen to the others. When ctx ends first, the
// blocks that were read by then are good, the error of one whose memory may
// still be written to is a *Busy, and the others were never begun.
func (s *Store) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	b := &batch{s: s, ctx: ctx, extents: make([]wanted, 0, len(reads)), blocks: make([]pending, len(reads)), done: make(chan struct{})}
	b.stays = ctx.Done() == nil || !slices.ContainsFunc(reads, func(r tiers.Read) bool { return r.Done == nil })
	subjects, errs, end := b.subjects(reads)
	defer end()
	for i, r := range reads {
		b.add(i, r, subjects[i], errs[i])
	}
	return b.run()
}

// subject is what a batch reads to one piece of memory, and what is made of it
// there.
type subject interface {
	String() string
	size() int64 // bytes of dst

	// extent is where its bytes lie as stored, and at where in dst they go.
	extent(dst []byte) (f source, off, size int64, at int)

	verify(dst []byte, at int) error // once they are there
	failed(err error) error          // gives an error of the file system its kind
}

// batch is one ReadBatch.
type batch struct {
	s       *Store
	ctx     context.Context
	extents []wanted
	small   []int // blocks without bytes
	calls   []call
	workers atomic.Int32   // that have not ended
	done    chan struct{}  // all workers have ended
	reports sync.WaitGroup // calls of Read.Done
	stays   bool           // the caller is one of the workers

	mu     sync.Mutex
	blocks []pending
	next   int  // call to begin
	left   bool // the caller has gone: no call is begun any more
}

// pending is one block of a batch. Its last call to end completes it.
type pending struct {
	subject // nil: it was not even tried
	report  func(error)
	dst     []byte
	at      int           // in dst: where the payload as stored goes
	calls   int           // that have not ended
	shared  bool          // one of its calls is of other blocks too
	fault   error         // of one of its calls
	ready   bool          // err is final
	err     error         // what the caller gets
	ended   chan struct{} // made when the caller leaves before ready
}

// add makes a read the i-th of the batch, unless err is the reason that it is none.
func (b *batch) add(i int, r tiers.Read, sub subject, err error) {
	one := &b.blocks[i]
	one.report, one.dst = r.Done, r.Dst
	if !r.Over {
		one.dst = r.Dst[:len(r.Dst):len(r.Dst)]
	}
	if one.report == nil {
		one.report = func(error) {}
	}
	switch {
	case err != nil:
		one.err = err
	case int64(len(r.Dst)) != sub.size():
		one.err = fmt.Errorf("%w: %d bytes of room for %d", ErrBadItem, len(r.Dst), sub.size())
	case b.ctx.Err() != nil:
		one.err = unavailable("read of "+sub.String(), b.ctx.Err())
	}
	if one.err != nil {
		b.s.faults.count(one.err)
		one.report(one.err)
		return
	}
	one.subject = sub
	if len(r.Dst) == 0 {
		b.small = append(b.small, i)
		return
	}
	f, off, size, at := sub.extent(r.Dst)
	one.at = at
	b.extents = append(b.extents, wanted{f, off, size, i})
}

// run reads what was added, and returns an error or nil for each.
func (b *batch) run() []error {
	if len(b.extents) > 0 || len(b.small) > 0 {
		b.start()
		select {
		case <-b.done:
		case <-b.ctx.Done():
		}
		b.abandon() // also when all workers have ended: ctx may have ended them
		b.reports.Wait()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(b.blocks))
	for i := range errs {
		errs[i] = b.blocks[i].err
	}
	return errs
}

// start plans the calls and lets workers make them. That the caller is one of them spares a single
// read two switches between threads.
func (b *batch) start() {
	b.calls = coalesce(b.extents)
	if waiting := len(b.calls) - batchDepth; waiting >= adviseFrom {
		b.s.advice.advise(b.extents)
	}
	for _, c := range b.calls {
		for _, p := range c.parts {
			one := &b.blocks[p.block]
			one.calls++
			one.shared = one.shared || len(c.parts) > 1
		}
	}
	// The calls may outlive the caller's references: they keep files and store open.
	b.s.mu.Lock()
	b.s.jobs++
	b.s.mu.Unlock()
	b.eachSource(func(f source) { f.retain(b.s) })
	for _, i := range b.small {
		b.complete(i)
	}
	workers := min(len(b.calls), batchDepth, cap(b.s.reads))
	b.workers.Store(int32(workers) + 1) // and this goroutine, until they are begun
	defer b.end()
	if b.stays {
		defer context.AfterFunc(b.ctx, func() {
			defer fault.Guard()()
			b.abandon()
		})()
	}
	for i := range workers {
		if b.stays && i == workers-1 {
			b.work()
			b.end()
		} else {
			go b.worker()
		}
	}
}

// end counts a worker that ends. The last one lets go of files and store.
func (b *batch) end() {
	if b.workers.Add(-1) > 0 {
		return
	}
	b.eachSource(func(f source) { f.release(b.s) })
	b.s.endJob()
	close(b.done)
}

// eachSource calls fn with each file that there are calls of.
func (b *batch) eachSource(fn func(f source)) {
	for i := range b.calls {
		if f := b.calls[i].file; i == 0 || f != b.calls[i-1].file {
			fn(f)
		}
	}
}

// worker is a goroutine that works.
func (b *batch) worker() {
	stack.Grow()
	defer b.end()
	defer fault.Guard()()
	b.work()
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
		held := b.s.reads.Taken()
		c := b.take()
		if c == nil {
			held.End()
			return
		}
		b.workers.Add(1)
		spare := time.AfterFunc(breaker.SlowAfter, b.worker)
		n, err := b.read(c)
		replaced := !spare.Stop()
		held.End()
		b.finish(c, n, err)
		if replaced {
			return
		}
		b.workers.Add(-1) // the spare's
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

// read makes one call: n bytes of it are right. That of one block alone is a plain read
// and not the ring's, where it would wait for two more switches between threads: 8 KiB
// of a virtual disk took 105 µs instead of 155. If it hangs it has a thread, not a slot.
func (b *batch) read(c *call) (n int64, err error) {
	h, err := c.file.open(b.s)
	if err != nil {
		return 0, err
	}
	defer func() { h.back(err != nil) }()
	bufs, gaps, err := b.buffers(c)
	if err != nil {
		return 0, err
	}
	ctx := b.ctx
	if len(b.calls) == 1 && len(c.parts) == 1 {
		ctx = context.WithoutCancel(ctx)
	}
	n, err = vfs.Preadv(ctx, h.File, bufs, c.off)
	n, err = inject.Read(context.WithoutCancel(ctx), inject.Segment, n, err, bufs...)
	if gaps != nil {
		b.s.access.gaps.Put(gaps)
	}
	forget(h.File, c.off, n)
	return n, err
}

// buffers returns where the bytes of a call go. A gap goes behind the block before
// it where there is room; all others share one piece of memory, which goes back
// when the call has ended.
func (b *batch) buffers(c *call) (bufs [][]byte, gaps []byte, err error) {
	bufs = make([][]byte, 0, 2*len(c.parts))
	over := int64(0) // how much behind the last buffer nobody needs
	for _, p := range c.parts {
		switch last := len(bufs) - 1; {
		case p.gap == 0:
		case p.gap <= over:
			bufs[last] = bufs[last][:len(bufs[last])+int(p.gap)]
		default:
			if gaps == nil {
				if gaps, err = b.s.access.gaps.Get(); err != nil {
					return nil, nil, err
				}
			}
			bufs = append(bufs, gaps[:p.gap])
		}
		one := &b.blocks[p.block]
		from := int64(one.at) + p.from
		bufs = append(bufs, one.dst[from:from+p.size])
		over = 0
		if from+p.size == int64(len(one.dst)) {
			over = int64(cap(one.dst) - len(one.dst))
		}
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
		err = one.verify(one.dst, one.at)
	case left:
		err = unavailable("read of "+one.String(), one.fault)
	case !one.shared && !errors.Is(one.fault, vfs.ErrStale):
		err = one.failed(one.fault)
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
			defer b.s.reads.Taken().End()
			f, off, size, at := one.extent(one.dst)
			err := pread(b.s, f, one.dst[at:][:size], off)
			if _, err = inject.Read(context.WithoutCancel(b.ctx), inject.Segment, size, err, one.dst[at:][:size]); err != nil {
				return one.failed(err)
			}
			return one.verify(one.dst, at)
		case <-b.ctx.Done():
		}
	}
	return unavailable("read of "+one.String(), b.ctx.Err())
}

// settle makes a block's outcome final and reports it, or that the block's memory
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
	b.reports.Add(1)
	b.mu.Unlock()
	defer b.reports.Done()
	b.s.faults.count(err)
	one.report(err)
}

// abandon makes the outcomes of all blocks final, and reports those that were not before.
func (b *batch) abandon() {
	b.mu.Lock()
	b.left = true
	var unfinished []int
	for _, c := range b.calls[b.next:] {
		for _, p := range c.parts {
			one := &b.blocks[p.block]
			one.fault = b.ctx.Err()
			if one.calls--; one.calls == 0 { // no call of it runs
				one.ready, one.err = true, unavailable("read of "+one.String()+": it was not begun", b.ctx.Err())
				unfinished = append(unfinished, p.block)
			}
		}
	}
	b.next = len(b.calls)
	for i := range b.blocks {
		one := &b.blocks[i]
		if one.subject != nil && !one.ready && one.ended == nil {
			one.ended = make(chan struct{})
			one.err = pool.NewBusy("read of "+one.String(), b.ctx.Err(), one.ended)
			unfinished = append(unfinished, i)
		}
	}
	b.reports.Add(len(unfinished))
	b.mu.Unlock()
	for _, i := range unfinished {
		b.s.faults.count(b.blocks[i].err)
		b.blocks[i].report(b.blocks[i].err)
		b.reports.Done()
	}
}
