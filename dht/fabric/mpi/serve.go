//go:build mpi

package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/mpi"
)

// handle deals with one control message. The driver calls it; b is only valid
// until it returns.
func (f *Fabric) handle(from fabric.Rank, b []byte) {
	h, body, err := decode(b)
	if err != nil {
		if errors.Is(err, errVersion) && h.kind != kindAnswer && h.kind != kindStatus {
			f.reply(from, header{kind: kindAnswer, status: statusRefused, id: h.id, tag: firstTag}, nil)
		}
		return // what can not be read can not be answered: its deadline ends it
	}
	d := &f.driven
	switch h.kind {
	case kindCall:
		f.called(from, h, body)
	case kindRead, kindCheck:
		a := asked{from: from, header: h, arrived: time.Now()}
		a.src, err = decodeSource(body)
		a.bad = err != nil
		if d.watch {
			f.ask(a)
			return
		}
		go func() { f.submit(f.hold(a)) }()
	case kindAnswer, kindStatus:
		o := d.ops[h.id]
		if o == nil || o.peer != from {
			return // it was answered before
		}
		if h.kind == kindStatus && o.read {
			o.statusArrived(h.status.err(from, string(body)))
			return
		}
		f.answered(o, h, body)
	}
}

// called starts answering a call.
func (f *Fabric) called(from fabric.Rank, h header, body []byte) {
	arrived := time.Now()
	if h.flags != flagData {
		req := bytes.Clone(body)
		go f.answer(from, h, req, arrived)
		return
	}
	f.receiveLong(from, h.length, int(h.tag)+1, func(b []byte) { go f.answer(from, h, b, arrived) })
}

// answered ends a call.
func (f *Fabric) answered(o *op, h header, body []byte) {
	o.answered = true
	switch {
	case h.flags == flagData:
		f.receiveLong(o.peer, h.length, int(o.tag), func(b []byte) {
			o.answer = b
			o.finish(nil)
			o.forget()
		})
		return
	case h.status == statusOK && !o.read:
		if o.state.Load() == opWaiting {
			o.answer = bytes.Clone(body)
		}
		o.finish(nil)
	default:
		o.finish(h.status.err(o.peer, string(body)))
	}
	o.forget()
}

// long is a body that comes as data.
type long struct {
	f    *Fabric
	b    []byte
	then func([]byte)
}

// receiveLong receives a long body and hands it over, in Go memory.
func (f *Fabric) receiveLong(from fabric.Rank, n uint32, tag int, then func([]byte)) {
	b, err := f.memory.take(int(n))
	if err != nil {
		return // the request's deadline ends it
	}
	if _, err := f.driven.receive(&long{f, b, then}, b, int(from), tag); err != nil {
		f.memory.give(b)
	}
}

func (l *long) finished(r mpi.Done) {
	if r.Err == nil && r.Bytes == int64(len(l.b)) {
		l.then(bytes.Clone(l.b))
	}
	l.f.memory.give(l.b)
}

// enter counts a use of the handler and returns it; nil when nobody serves.
// leave must follow either way.
func (f *Fabric) enter() fabric.Handler {
	f.handling.Add(1)
	if h := f.handler.Load(); h != nil && !f.closing.Load() {
		return *h
	}
	return nil
}

func (f *Fabric) leave() { f.handling.Add(-1) }

// answer runs the handler of a call and sends its answer.
func (f *Fabric) answer(from fabric.Rank, h header, req []byte, arrived time.Time) {
	defer f.leave()
	reply := header{kind: kindAnswer, status: statusClosed, id: h.id, tag: h.tag}
	handler := f.enter()
	if handler == nil {
		f.submit(answer{f, from, reply, nil})
		return
	}
	ctx, cancel := context.WithDeadline(f.life, arrived.Add(h.timeout))
	defer cancel()
	body, err := handler.Answer(ctx, from, req)
	var text string
	reply.status, text = statusOf(err)
	if err == nil && len(body) > fabric.MaxMessage {
		reply.status, body = statusTooLarge, nil
	} else if err != nil {
		body = []byte(text)
	}
	f.submit(answer{f, from, reply, body})
}

// answer is a message to a rank that asked.
type answer struct {
	f      *Fabric
	to     fabric.Rank
	header header
	body   []byte
}

func (a answer) post() { a.f.reply(a.to, a.header, a.body) }

// reply sends a control message, and the data that belongs to it. The driver
// calls it. What can not be sent is lost: the request's deadline ends it.
func (f *Fabric) reply(to fabric.Rank, h header, body []byte) {
	control, data, err := f.message(to, h, body)
	if err != nil {
		return
	}
	control.post()
	if data != nil {
		data.to.tag = int(h.tag)
		data.post()
	}
}

// served is the answer to a read or a check: the bytes, or a status.
type served struct {
	f      *Fabric
	asked  asked
	hold   fabric.Hold // nil when there is nothing to send, or not any more
	until  time.Time   // after which nobody wants the bytes
	status status
	text   string
}

// hold pins what was asked for.
func (f *Fabric) hold(a asked) *served {
	defer f.leave()
	s := &served{f: f, asked: a, status: statusClosed, until: a.arrived.Add(a.header.timeout + gracePeriod)}
	handler := f.enter()
	if handler == nil {
		return s
	}
	if a.bad {
		s.status, s.text = statusError, "the source makes no sense"
		return s
	}
	hold, err := handler.Hold(a.src)
	if err != nil {
		s.status, s.text = statusOf(err)
		return s
	}
	if n := len(hold.Bytes()); int64(n) != a.src.Length {
		hold.Release()
		s.status, s.text = statusError, fmt.Sprintf("the owner holds %d of %d bytes", n, a.src.Length)
		return s
	}
	s.status = statusOK
	if a.header.kind == kindCheck {
		hold.Release()
		return s
	}
	s.hold = hold
	return s
}

// post sends the bytes, or a status and an empty message in their place, which
// ends the reader's receive.
func (s *served) post() {
	d, a := &s.f.driven, s.asked
	if s.hold != nil && a.src.Length > 0 && time.Now().Before(s.until) {
		if d.send(s, s.hold.Bytes(), int(a.from), int(a.header.tag)) == nil {
			d.serving++
			return
		}
		s.status, s.text = statusError, "the bytes could not be sent"
	}
	s.release()
	s.f.reply(a.from, header{kind: kindStatus, status: s.status, id: a.header.id, tag: a.header.tag}, []byte(s.text))
	if a.src.Length > 0 && a.header.kind == kindRead {
		_ = d.send(nothing{}, nil, int(a.from), int(a.header.tag)) // lost: the reader's deadline ends it
	}
}

// finished is the end of the send.
func (s *served) finished(mpi.Done) {
	s.f.driven.serving--
	s.release()
}

func (s *served) release() {
	if s.hold != nil {
		s.hold.Release()
		s.hold = nil
	}
}

// nothing is called at the end of sends that nobody waits for.
type nothing struct{}

func (nothing) finished(mpi.Done) {}
