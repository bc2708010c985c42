//go:build mpi

package mpi

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/mpi"
)

// States of an op. A waiting one is ended once: by the driver, who writes the
// result and then sets finished, or by its caller, who gives up.
const (
	opWaiting uint32 = iota
	opEnding
	opFinished
	opAbandoned
)

// op is a request of this rank to another. After its caller has given up it
// stays as a tombstone until its answer comes, so that its tag and its memory
// are not used for something else before.
type op struct {
	f        *Fabric
	peer     fabric.Rank
	id       uint64
	read     bool
	dst      []byte // of a read
	src      fabric.Source
	deadline time.Time
	control  *outbox // the request; nil once posted
	body     *outbox // of a long call

	state atomic.Uint32
	lead  atomic.Bool   // the caller shall be the driver
	tired atomic.Bool   // the caller led in vain: the watch does it
	wake  chan struct{} // when the caller has something to look at
	left  chan struct{} // closed when dst is free again, after the caller gave up

	// Written by the driver. The caller may read answer and err when the state
	// is opFinished.
	tag       uint32
	answer    []byte
	err       error
	slot      int  // of the receive into dst
	receiving bool // that receive, or copy, is under way
	direct    bool // dst is copied from the peer's window; the request follows
	answered  bool // the answer or status is here
	failure   error
	late      chan struct{} // as left, after the op failed early

	there atomic.Bool // dst is not MPI's any more
	freed atomic.Bool // left is closed
}

// post starts the receive and sends the request. The driver calls it.
func (o *op) post() {
	d := &o.f.driven
	tag, free := d.tags.take()
	err := o.f.reachable(o.peer)
	if err == nil && !free {
		err = fmt.Errorf("%w: %d requests wait for their answers", fabric.ErrUnreachable, tagPairs)
	}
	if err != nil || o.state.Load() == opAbandoned {
		if free {
			d.tags.give(tag)
		}
		o.refuse(err)
		return
	}
	o.tag = tag
	o.control.tag(tag)
	d.ops[o.id] = o
	if o.read && len(o.dst) > 0 {
		o.direct = d.copies(o)
		if o.direct {
			o.receiving = true
			return
		}
		if o.slot, err = d.receive(o, o.dst, int(o.peer), int(tag)); err != nil {
			o.refuse(fmt.Errorf("%w: %w", fabric.ErrUnreachable, err))
			o.forget()
			return
		}
		o.receiving = true
	}
	o.control.post()
	if o.body != nil {
		o.body.to.tag = int(tag) + 1
		o.body.post()
	}
	o.control, o.body = nil, nil
}

// refuse ends an op that MPI was not given.
func (o *op) refuse(err error) {
	o.control.drop()
	if o.body != nil {
		o.body.drop()
	}
	o.finish(err)
	if o.state.Load() == opAbandoned && o.left != nil {
		o.free()
	}
}

// finish ends the op for its caller, unless that has given up.
func (o *op) finish(err error) {
	if !o.state.CompareAndSwap(opWaiting, opEnding) {
		return
	}
	if _, said := errors.AsType[*fabric.RemoteError](err); (err == nil || said) && time.Now().After(o.deadline) {
		// The owner may have let go of the bytes before they were all here, and
		// a handler that ran out of time has nothing to say.
		err = context.DeadlineExceeded
	}
	if err != nil && o.receiving {
		o.late = make(chan struct{})
		err = &lingering{err, o.late}
	}
	o.err = err
	o.state.Store(opFinished)
	o.f.driven.woken++
	o.rouse()
}

// rouse has the caller look at its op.
func (o *op) rouse() {
	select {
	case o.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// fail ends the op with an MPI error, or with what stands for one.
func (o *op) fail(err error) { o.finish(fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)) }

// abandon is the caller giving up. It is false when the driver ended the op
// first.
func (o *op) abandon(err error) (error, bool) {
	lingers := o.read && len(o.dst) > 0 && !o.there.Load()
	if lingers {
		o.left = make(chan struct{})
		err = &lingering{err, o.left}
	}
	ok := o.state.CompareAndSwap(opWaiting, opAbandoned)
	if ok && lingers && o.there.Load() {
		o.free()
	}
	return err, ok
}

// free reports to a caller that gave up that dst is its own again.
func (o *op) free() {
	if o.freed.CompareAndSwap(false, true) {
		close(o.left)
	}
}

// finished is the end of the receive into dst, or of the copy.
func (o *op) finished(r mpi.Done) {
	o.receiving = false
	if o.direct {
		o.copied(r)
		return
	}
	switch {
	case r.Err != nil:
		o.fail(r.Err)
	case r.Cancelled:
		o.fail(context.Canceled) // the peer is gone, and the op has ended before
	case r.Bytes == int64(len(o.dst)):
		o.answered = true // there is no status with the bytes
		o.finish(nil)
	case r.Bytes != 0:
		o.fail(fmt.Errorf("%d bytes came", r.Bytes))
	case o.answered:
		o.finish(o.failure)
	}
	if o.late != nil {
		close(o.late)
	}
	if o.state.Load() == opAbandoned {
		o.free()
	}
	if o.answered || r.Bytes != 0 || r.Err != nil || r.Cancelled {
		o.forget() // else the status is on its way
	}
}

// statusArrived handles the arrival of a read's status.
func (o *op) statusArrived(err error) {
	o.answered, o.failure = true, err
	if o.receiving {
		return // an empty message ends the receive
	}
	if err == nil && len(o.dst) > 0 && !o.direct {
		o.fail(fmt.Errorf("the peer says it sent %d bytes, which did not come", len(o.dst)))
	}
	o.finish(err)
	o.forget()
}

// forget ends a tombstone.
func (o *op) forget() {
	if d := &o.f.driven; d.ops[o.id] == o {
		delete(d.ops, o.id)
		d.tags.give(o.tag)
	}
}

// outbox is a message on its way out, in memory of its own.
type outbox struct {
	f  *Fabric
	b  []byte
	to struct{ rank, tag int }
}

// message makes the control message with header h and a body, and if the body
// is long, the data message with it.
func (f *Fabric) message(to fabric.Rank, h header, body []byte) (control, data *outbox, err error) {
	h.length = uint32(len(body))
	if len(body) > maxInline {
		h.flags = flagData
		if data, err = f.outbox(to, len(body)); err != nil {
			return nil, nil, err
		}
		copy(data.b, body)
		body = nil
	}
	if control, err = f.outbox(to, headerSize+len(body)); err != nil {
		return nil, nil, err
	}
	control.to.tag = controlTag
	h.encode(control.b)
	copy(control.b[headerSize:], body)
	return control, data, nil
}

func (f *Fabric) outbox(to fabric.Rank, n int) (*outbox, error) {
	b, err := f.memory.take(n)
	if err != nil {
		return nil, err
	}
	x := &outbox{f: f, b: b}
	x.to.rank = int(to)
	return x, nil
}

// tag sets the tag in a control message.
func (x *outbox) tag(tag uint32) { putTag(x.b, tag) }

// post starts sending. An error of MPI is as good as a lost message: the
// request's deadline ends it.
func (x *outbox) post() {
	if err := x.f.driven.send(x, x.b, x.to.rank, x.to.tag); err != nil {
		x.drop()
	}
}

// finished is the end of the send.
func (x *outbox) finished(mpi.Done) { x.drop() }

func (x *outbox) drop() {
	x.f.memory.give(x.b)
	x.b = nil
}

// ending ends all operations, or those to one rank, with err.
type ending struct {
	f    *Fabric
	err  error
	only *fabric.Rank
}

func (e ending) post() {
	d := &e.f.driven
	for _, o := range d.ops {
		if e.only != nil && o.peer != *e.only {
			continue
		}
		o.finish(e.err)
		if o.receiving && !o.direct && e.only != nil {
			_ = d.set.Cancel(o.slot) // if MPI can not, the bytes or Close end it
		}
	}
}
