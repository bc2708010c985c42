package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
)

// bufferSize is the read buffer of a stream of calls: a few small frames. The
// bodies of large ones pass it by.
const bufferSize = 16 << 10

// callStream is the asking end of a stream of calls.
type callStream struct {
	life  *life
	conn  net.Conn
	queue *queue
	ctx   context.Context // ends with the stream
	stop  context.CancelCauseFunc

	mu      sync.Mutex
	last    uint64
	heard   bool                    // something was answered
	pending map[uint64]chan outcome // by id
}

// outcome is how a call was answered.
type outcome struct {
	answer []byte
	err    error
}

// calls returns the peer's stream of calls, and opens it if there is none.
func (l *life) calls(ctx context.Context) (*callStream, error) {
	for {
		l.mu.Lock()
		if s := l.stream; s != nil {
			l.mu.Unlock()
			return s, nil
		}
		opened := l.opening
		if opened == nil && !l.over {
			if l.failed != nil && time.Now().Before(l.retry) {
				defer l.mu.Unlock()
				return nil, l.failed
			}
			opened = make(chan struct{})
			l.opening = opened
			l.fabric.work.Add(1)
			go l.openCalls()
		}
		l.mu.Unlock()
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, l.fabric.cause(ctx, l)
		case <-l.ctx.Done():
			return nil, l.fabric.cause(ctx, l)
		}
		l.mu.Lock()
		failed := l.failed
		if l.stream != nil {
			failed = nil
		}
		l.mu.Unlock()
		if failed != nil {
			return nil, failed
		}
	}
}

// openCalls opens the stream of calls for all who wait for it: the attempt is
// bounded by its own time, not by that of any of them.
func (l *life) openCalls() {
	defer l.fabric.work.Done()
	conn, err := l.connect(l.ctx, forCalls)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.opening)
	l.opening = nil
	if err != nil {
		return
	}
	if l.over {
		_ = conn.Close()
		return
	}
	s := &callStream{life: l, conn: conn, queue: newQueue(conn), pending: map[uint64]chan outcome{}}
	s.ctx, s.stop = context.WithCancelCause(l.ctx)
	l.stream = s
	l.fabric.work.Add(2)
	go func() {
		defer fault.Guard()()
		defer l.fabric.work.Done()
		s.finish(s.receive())
	}()
	go func() {
		defer fault.Guard()()
		defer l.fabric.work.Done()
		s.finish(s.queue.run(s.ctx))
	}()
}

// end makes the stream's goroutines end.
func (s *callStream) end(why error) {
	s.stop(why)
	_ = s.conn.Close()
}

// finish ends the stream after an error of it. A stream that ended before it
// was of any use counts as a failed attempt: the peer turns us away.
func (s *callStream) finish(err error) {
	if err == nil {
		err = io.EOF
	}
	s.end(err)
	s.mu.Lock()
	heard := s.heard
	s.mu.Unlock()
	l := s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != s {
		return
	}
	l.stream = nil
	if heard {
		l.backoff = firstBackoff
	} else {
		l.fail(fmt.Errorf("%w: it closed the stream at once: %w", fabric.ErrUnreachable, err))
	}
}

// call is one call over the stream.
func (s *callStream) call(ctx context.Context, req []byte) ([]byte, error) {
	done := make(chan outcome, 1)
	s.mu.Lock()
	s.last++
	id := s.last
	s.pending[id] = done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.pending, id)
		s.mu.Unlock()
	}()
	if frame := (header{kind: kindCall, id: id, number: left(ctx)}).frame(req); !s.queue.try(frame) {
		select {
		case s.queue.frames <- frame:
		case <-ctx.Done():
			return nil, s.life.fabric.cause(ctx, s.life)
		case <-s.ctx.Done():
			return nil, s.broken(ctx)
		}
	}
	select {
	case o := <-done:
		return o.answer, o.err
	case <-s.ctx.Done():
		return nil, s.broken(ctx)
	case <-ctx.Done():
		select { // the peer need not go on; if that can not be said at once it will see
		case s.queue.frames <- header{kind: kindCancel, id: id}.frame(nil):
		default:
		}
		return nil, s.life.fabric.cause(ctx, s.life)
	}
}

// broken is the error of a call whose stream has ended.
func (s *callStream) broken(ctx context.Context) error {
	if err := s.life.fabric.cause(ctx, s.life); err != nil {
		return err
	}
	return fmt.Errorf("%w: the stream broke: %w", fabric.ErrUnreachable, context.Cause(s.ctx))
}

// receive hands answers to those who wait for them.
func (s *callStream) receive() error {
	r := bufio.NewReaderSize(newReceiver(s.conn), bufferSize)
	for {
		h, err := readHeader(r)
		if err != nil {
			return err
		}
		if h.kind != kindAnswer && h.kind != kindFailure {
			return fmt.Errorf("%w: kind %d instead of an answer", errFrame, h.kind)
		}
		s.mu.Lock()
		done := s.pending[h.id]
		delete(s.pending, h.id)
		known := h.id <= s.last
		s.heard = true
		s.mu.Unlock()
		if !known {
			return fmt.Errorf("%w: an answer to call %d, which was not made", errFrame, h.id)
		}
		if done == nil { // its caller has gone
			if _, err := r.Discard(h.length); err != nil {
				return err
			}
			continue
		}
		body := make([]byte, h.length)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		if h.kind == kindFailure {
			done <- outcome{err: &fabric.RemoteError{Peer: s.life.peer.Rank, Text: string(body)}}
		} else {
			done <- outcome{answer: body}
		}
	}
}

// readHeader reads one header. io.EOF is an end between frames.
func readHeader(r *bufio.Reader) (header, error) {
	b, err := r.Peek(headerSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return header{}, err
	}
	h, err := decode((*[headerSize]byte)(b))
	_, _ = r.Discard(headerSize) // they are there
	return h, err
}

// answerer is the answering end of a stream of calls.
type answerer struct {
	fabric *Fabric
	from   fabric.Rank
	queue  *queue
	ctx    context.Context // ends with the stream

	room   chan struct{} // taken by calls that are being answered
	mu     sync.Mutex
	active map[uint64]context.CancelFunc // by id
}

// answerCalls serves a stream of calls until it ends.
func (f *Fabric) answerCalls(conn net.Conn, from fabric.Rank) error {
	a := &answerer{
		fabric: f, from: from, queue: newQueue(conn),
		room: make(chan struct{}, f.options.Requests), active: map[uint64]context.CancelFunc{},
	}
	var stop context.CancelFunc
	a.ctx, stop = context.WithCancel(f.ctx)
	defer stop()
	sender := make(chan error, 1)
	f.work.Add(1) // the receiver is one, so the fabric still waits
	go func() {
		defer fault.Guard()()
		defer f.work.Done()
		err := a.queue.run(a.ctx)
		_ = conn.Close()
		stop()
		sender <- err
	}()
	err := a.receive(bufio.NewReaderSize(newReceiver(conn), bufferSize))
	stop()
	_ = conn.Close()
	if serr := <-sender; lost(err) {
		err = serr
	}
	if lost(err) {
		return nil
	}
	return err
}

func (a *answerer) receive(r *bufio.Reader) error {
	for {
		h, err := readHeader(r)
		if err != nil {
			return err
		}
		switch h.kind {
		case kindCall:
			if err := a.start(h, r); err != nil {
				return err
			}
		case kindCancel:
			a.mu.Lock()
			if cancel := a.active[h.id]; cancel != nil {
				cancel()
			}
			a.mu.Unlock()
		default:
			return fmt.Errorf("%w: kind %d instead of a call", errFrame, h.kind)
		}
	}
}

// start reads a request, when there is room, and lets it be answered.
func (a *answerer) start(h header, r *bufio.Reader) error {
	if quick, err := a.answerQuickly(h, r); quick || err != nil {
		return err
	}
	select {
	case a.room <- struct{}{}:
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(a.ctx, limit(h.number, time.Hour))
	err := a.enter(h.id, cancel)
	req := make([]byte, h.length)
	if err == nil {
		_, err = io.ReadFull(r, req)
	}
	if err != nil {
		cancel()
		<-a.room
		return err
	}
	a.fabric.work.Add(1)
	go func() {
		defer fault.Guard()()
		defer a.fabric.work.Done()
		defer a.leave(h.id, cancel)
		a.answer(ctx, h.id, req)
	}()
	return nil
}

// answerQuickly answers a request that has come whole and takes no time; false: it is
// none, and is still to be read.
func (a *answerer) answerQuickly(h header, r *bufio.Reader) (bool, error) {
	quick, ok := a.fabric.quick()
	if !ok || h.length > r.Buffered() {
		return false, nil
	}
	req, err := r.Peek(h.length)
	if err != nil || !quick.Quick(req) {
		return false, err
	}
	end := time.Now().Add(limit(h.number, time.Hour))
	answer, err := a.fabric.answer(a.ctx, a.from, req)
	if _, derr := r.Discard(h.length); derr != nil {
		return false, derr
	}
	if time.Now().Before(end) {
		a.reply(h.id, answer, err)
	}
	return true, nil
}

func (a *answerer) enter(id uint64, cancel context.CancelFunc) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[id] != nil {
		return fmt.Errorf("%w: call %d is under way already", errFrame, id)
	}
	a.active[id] = cancel
	return nil
}

func (a *answerer) leave(id uint64, cancel context.CancelFunc) {
	cancel()
	a.mu.Lock()
	delete(a.active, id)
	a.mu.Unlock()
	<-a.room
}

// answer answers one call, if there is still somebody to hear it.
func (a *answerer) answer(ctx context.Context, id uint64, req []byte) {
	answer, err := a.fabric.answer(ctx, a.from, req)
	if ctx.Err() == nil { // else the caller's own deadline ends it
		a.reply(id, answer, err)
	}
}

// reply sends the handler's answer, or its error.
func (a *answerer) reply(id uint64, answer []byte, err error) {
	frame := header{kind: kindAnswer, id: id}
	if err != nil {
		frame.kind, answer = kindFailure, []byte(clip(err.Error()))
	}
	if whole := frame.frame(answer); !a.queue.try(whole) {
		select {
		case a.queue.frames <- whole:
		case <-a.ctx.Done():
		}
	}
}
