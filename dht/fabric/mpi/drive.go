//go:build mpi

package mpi

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/mpi"
)

// inboxes is how many control messages can arrive between two tests without
// MPI having to keep them.
const inboxes = 16

const (
	passSpins  = 40                     // tests in one visit to MPI: a few microseconds
	eager      = 500 * time.Microsecond // without news, after which cores are left to others
	leadRead   = 2 * time.Millisecond   // without news, after which a reader leaves MPI to the watch
	leadCall   = 200 * time.Microsecond // the same for a caller
	sweepEvery = 50 * time.Millisecond
)

// poster is what the driver can be given to do.
type poster interface{ post() }

// finisher is called at the end of a request that it started.
type finisher interface{ finished(mpi.Done) }

// driven is what only the driver may touch.
type driven struct {
	f       *Fabric
	set     *mpi.Set // nil after Close
	slots   []finisher
	ops     map[uint64]*op // by id, tombstones too
	tags    *tags
	watch   bool // the driver is the watch
	spare   []poster
	ended   []finisher
	woken   int // goroutines made runnable in this pass
	serving int // payloads under way to other ranks
	sweepAt time.Time
	direct  oneSided
}

func (d *driven) init(f *Fabric) error {
	*d = driven{f: f, set: f.comm.NewSet(), ops: map[uint64]*op{}, tags: newTags()}
	for range inboxes {
		b, err := f.memory.take(inboxSize)
		if err != nil {
			return err
		}
		if err := (&inbox{f, b}).listen(); err != nil {
			return err
		}
	}
	return nil
}

// send starts a send; by is called at its end.
func (d *driven) send(by finisher, b []byte, to, tag int) error {
	if d.set == nil {
		return fabric.ErrClosed
	}
	slot, err := d.set.Isend(b, to, tag)
	d.keep(slot, by, err)
	return err
}

// receive starts a receive and returns its slot; by is called at its end.
func (d *driven) receive(by finisher, b []byte, from, tag int) (int, error) {
	if d.set == nil {
		return -1, fabric.ErrClosed
	}
	slot, err := d.set.Irecv(b, from, tag)
	d.keep(slot, by, err)
	return slot, err
}

func (d *driven) keep(slot int, by finisher, err error) {
	if err != nil {
		return
	}
	for slot >= len(d.slots) {
		d.slots = append(d.slots, nil)
	}
	d.slots[slot] = by
}

// push leaves p to the driver.
func (f *Fabric) push(p poster) {
	f.queueMu.Lock()
	f.queue = append(f.queue, p)
	f.queueMu.Unlock()
	f.queued.Add(1)
}

// submit has p posted now, or by the driver at once.
func (f *Fabric) submit(p poster) {
	if f.drive.TryLock() {
		p.post()
		f.pass(1, false)
		f.release()
		return
	}
	f.push(p)
	if f.drive.TryLock() { // the driver may have left without seeing it
		f.pass(1, false)
		f.release()
	}
}

// pass posts what is queued, lets MPI work, and deals with what it has done.
// It reports whether anything happened. The driver calls it.
func (f *Fabric) pass(spins int, yield bool) bool {
	d := &f.driven
	worked := f.drain()
	if d.set == nil {
		return worked
	}
	done, err := d.set.Test(spins, yield)
	if err != nil {
		ending{f: f, err: fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)}.post()
		time.Sleep(time.Millisecond) // MPI is broken: do not burn a core on it
	}
	d.ended = d.ended[:0]
	for _, r := range done { // all slots are free now, and the callbacks may fill them again
		d.ended = append(d.ended, d.slots[r.Slot])
		d.slots[r.Slot] = nil
	}
	for i, r := range done {
		d.ended[i].finished(r)
	}
	return worked || len(done) > 0
}

// drain posts what is queued.
func (f *Fabric) drain() bool {
	if f.queued.Load() == 0 {
		return false
	}
	d := &f.driven
	f.queueMu.Lock()
	todo := f.queue
	f.queue = d.spare[:0]
	f.queueMu.Unlock()
	f.queued.Add(-int32(len(todo)))
	for i, p := range todo {
		p.post()
		todo[i] = nil
	}
	d.spare = todo
	return len(todo) > 0
}

// lead drives until o has ended, or for as long as that is worth it. The
// caller has become the driver; it is not any more when lead returns.
func (f *Fabric) lead(ctx context.Context, o *op) {
	d := &f.driven
	d.woken = 0
	patience := leadCall
	if o.read {
		patience = leadRead
	}
	news := time.Now()
	yield := false
	for o.state.Load() == opWaiting {
		worked := f.pass(passSpins, yield)
		if o.state.Load() != opWaiting {
			break
		}
		now := time.Now()
		if worked {
			news, yield = now, false
		}
		if now.After(o.deadline) || ctx.Err() != nil || now.Sub(news) > patience {
			o.tired.Store(true)
			break
		}
		yield = now.Sub(news) > eager
		if d.woken > 0 {
			d.woken = 0
			runtime.Gosched() // let those whose answers came ask again
		}
	}
	f.release()
}

// release ends a caller's time as the driver. Another caller that waits takes
// over; what else is under way is the watch's.
func (f *Fabric) release() {
	d := &f.driven
	for {
		next := d.successor()
		busy := d.serving > 0 || len(d.ops) > 0
		f.drive.Unlock()
		switch {
		case next != nil:
			next.lead.Store(true)
			next.rouse()
			return
		case busy:
			f.watch.wake()
		}
		if f.queued.Load() == 0 || !f.drive.TryLock() {
			return
		}
		f.drain()
	}
}

// successor is some caller that waits, if one is easily found.
func (d *driven) successor() *op {
	tries := 0
	for _, o := range d.ops {
		if o.state.Load() == opWaiting && !o.tired.Load() {
			return o
		}
		if tries++; tries == 8 {
			break
		}
	}
	return nil
}

// inbox is a posted receive for control messages.
type inbox struct {
	f *Fabric
	b []byte
}

func (x *inbox) listen() error {
	_, err := x.f.driven.receive(x, x.b, mpi.AnySource, controlTag)
	return err
}

// finished deals with a message and waits for the next.
func (x *inbox) finished(r mpi.Done) {
	if r.Cancelled {
		x.f.memory.give(x.b)
		return
	}
	if r.Err == nil {
		x.f.handle(fabric.Rank(r.Source), x.b[:r.Bytes])
	}
	if err := x.listen(); err != nil {
		x.f.memory.give(x.b) // one less; MPI is failing, and the requests' deadlines say so
	}
}
