package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
	"cascadekv/internal/halfopen"
)

// Fabric is one rank's end, a fabric.Fabric. Make one with New.
type Fabric struct {
	options  Options
	identity *identity
	listener net.Listener
	addr     string

	ctx    context.Context // ends with Close; its cause is then fabric.ErrClosed
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // goroutines and operations; joined under mu while open

	kernel    chan struct{} // taken while a thread waits in the kernel for a payload
	lingering chan struct{} // taken while one waits there for the next read

	idle idleWires

	half     *halfopen.Table // streams whose opener has not proved that it has the secret
	vouching chan struct{}   // taken while the authority is asked about an opener that has

	serving chan struct{} // closed by Serve
	handler fabric.Handler

	mu     sync.Mutex
	closed bool
	served bool
	lives  map[fabric.Rank]*life
	here   map[net.Conn]*visitor // streams that others opened
	count  map[fabric.Rank]int   // of them, by peer
}

// visitor is a stream that another rank opened, or somebody who may be one.
type visitor struct {
	rank   fabric.Rank
	proved bool
}

var (
	_ fabric.Fabric      = (*Fabric)(nil)
	_ fabric.BatchReader = (*Fabric)(nil)
)

// New listens and returns the rank's fabric. The caller closes it.
func New(o Options) (*Fabric, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("tcp: listen for other ranks: %w", err)
	}
	addr, err := o.advertised(l.Addr())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	f := &Fabric{
		identity: newIdentity(&o), listener: l, addr: addr,
		kernel: make(chan struct{}, waiting), lingering: make(chan struct{}, lingerers), serving: make(chan struct{}),
		idle: idleWires{most: idleMost}, half: halfopen.NewTable(halfOpen), vouching: make(chan struct{}, vouchers),
		lives: map[fabric.Rank]*life{}, here: map[net.Conn]*visitor{}, count: map[fabric.Rank]int{},
	}
	o.Secret = nil
	f.options = o
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	f.work.Go(f.listen)
	return f, nil
}

// Name implements fabric.Fabric.
func (f *Fabric) Name() string { return "tcp" }

// Self implements fabric.Fabric.
func (f *Fabric) Self() fabric.Rank { return f.options.Self }

// Addr implements fabric.Fabric.
func (f *Fabric) Addr() string { return f.addr }

// Serve implements fabric.Fabric. Calls that came before wait for it.
func (f *Fabric) Serve(h fabric.Handler) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fmt.Errorf("tcp: serve: %w", fabric.ErrClosed)
	}
	if f.served {
		return errors.New("tcp: Serve was called before")
	}
	f.served, f.handler = true, h
	close(f.serving)
	return nil
}

// SetPeer implements fabric.Fabric.
func (f *Fabric) SetPeer(p fabric.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || p.Rank == f.options.Self {
		return
	}
	old := f.lives[p.Rank]
	if old != nil && p.Incarnation < old.peer.Incarnation {
		return
	}
	same := old != nil && p.Incarnation == old.peer.Incarnation && p.Addr == old.peer.Addr &&
		(p.State == fabric.Gone) == (old.peer.State == fabric.Gone)
	if same {
		return // alive or suspect is one to TCP
	}
	l := newLife(f, p)
	f.lives[p.Rank] = l
	if old != nil {
		old.finish()
	}
}

// Close implements fabric.Fabric.
func (f *Fabric) Close() error {
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	if first {
		f.cancel(fabric.ErrClosed)
		_ = f.listener.Close()
		for _, l := range f.lives {
			l.finish()
		}
		for c := range f.here {
			shut(c)
		}
	}
	f.mu.Unlock()
	done := make(chan struct{})
	go func() {
		f.work.Wait()
		close(done)
	}()
	late := time.NewTimer(closePatience)
	defer late.Stop()
	select {
	case <-done:
		return nil
	case <-late.C:
		return fmt.Errorf("tcp: close: calls are still handled after %v: a handler does not obey its context", closePatience)
	}
}

// begin starts an operation; the caller ends it with f.work.Done if there is
// no error. life is nil for operations on this rank itself.
func (f *Fabric) begin(ctx context.Context, to fabric.Rank) (*life, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("the context has no deadline: give it one")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fabric.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := f.lives[to]
	switch {
	case to == f.options.Self:
		l = nil
	case l == nil:
		return nil, fmt.Errorf("%w: nothing is known of it", fabric.ErrUnreachable)
	case l.peer.State == fabric.Gone:
		return nil, fmt.Errorf("%w: it is gone", fabric.ErrUnreachable)
	}
	f.work.Add(1)
	return l, nil
}

// Call implements fabric.Fabric.
func (f *Fabric) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	answer, err := f.call(ctx, to, req)
	if err != nil {
		if _, remote := errors.AsType[*fabric.RemoteError](err); remote {
			return nil, err
		}
		return nil, fmt.Errorf("tcp: call %v: %w", to, err)
	}
	return answer, nil
}

func (f *Fabric) call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	if len(req) > fabric.MaxMessage {
		return nil, fmt.Errorf("%w: the request has %d bytes", fabric.ErrTooLarge, len(req))
	}
	l, err := f.begin(ctx, to)
	if err != nil {
		return nil, err
	}
	defer f.work.Done()
	if l == nil {
		return f.callSelf(ctx, req)
	}
	c, err := l.calls(ctx)
	if err != nil {
		return nil, err
	}
	return c.call(ctx, req)
}

// Read implements fabric.Fabric. Its errors are never fabric.Lingering.
func (f *Fabric) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	one := [1]fabric.Read{{Source: src, Dst: dst}}
	f.ReadBatch(ctx, from, one[:])
	return one[0].Err
}

// ReadBatch implements fabric.BatchReader: all reads are asked for at once on one
// stream, which answers them one after the other.
func (f *Fabric) ReadBatch(ctx context.Context, from fabric.Rank, reads []fabric.Read) {
	f.readBatch(ctx, from, reads)
	for i := range reads {
		if r := &reads[i]; r.Err != nil {
			r.Err = fmt.Errorf("tcp: read %d bytes of region %d from %v: %w", r.Source.Length, r.Source.Region, from, r.Err)
		}
	}
}

func (f *Fabric) readBatch(ctx context.Context, from fabric.Rank, reads []fabric.Read) {
	l, err := f.begin(ctx, from)
	if err != nil {
		for i := range reads {
			reads[i].Err = err
		}
		return
	}
	defer f.work.Done()
	for len(reads) > 0 {
		n := 0 // reads that can be made
		for n < min(len(reads), fabric.MaxBatch) && readable(&reads[n]) {
			n++
		}
		switch {
		case n > 0 && l != nil:
			l.read(ctx, reads[:n])
		case n > 0:
			for i := range reads[:n] {
				reads[i].Err = f.readSelf(ctx, reads[i].Source, reads[i].Dst)
			}
		default:
			n = 1
		}
		reads = reads[n:]
	}
}

// readable checks a read, and sets its Err if it can not be made.
func readable(r *fabric.Read) bool {
	switch {
	case r.Source.Length < 0 || int64(len(r.Dst)) != r.Source.Length:
		r.Err = fmt.Errorf("the destination has %d bytes", len(r.Dst))
	case r.Source.Length > fabric.MaxRead:
		r.Err = fabric.ErrTooLarge
	default:
		return true
	}
	return false
}

// cause reports why something that waited for ctx or for the end of a life ended:
// ctx's error comes last, for the fabric's own end ends what hangs on it too.
func (f *Fabric) cause(ctx context.Context, l *life) error {
	switch {
	case f.ctx.Err() != nil:
		return fabric.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case l != nil && l.ctx.Err() != nil:
		return fmt.Errorf("%w: it is gone or was replaced", fabric.ErrUnreachable)
	}
	return nil
}

// listen accepts streams until the fabric closes.
func (f *Fabric) listen() {
	for wait := time.Millisecond; ; {
		conn, err := f.listener.Accept()
		if f.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil { // out of descriptors, most likely: it passes
			f.options.Observe(fmt.Errorf("tcp: accept a stream: %w", err))
			f.pause(wait)
			wait = min(2*wait, time.Second)
			continue
		}
		wait = time.Millisecond
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			_ = conn.Close()
			return
		}
		f.here[conn] = &visitor{}
		place, crowded := f.half.Add(conn)
		f.work.Go(func() { f.receive(conn, place, crowded) })
		f.mu.Unlock()
	}
}

func (f *Fabric) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-f.ctx.Done():
	}
}

// receive serves one stream that somebody opened here, and that has a place in
// f.half.
func (f *Fabric) receive(conn net.Conn, place *halfopen.Place, crowded bool) {
	defer fault.Guard()()
	defer f.forget(conn)
	proved := false
	g, err := f.admit(conn, crowded, func() error {
		if proved = place.Leave(); !proved {
			return errDropped
		}
		return nil
	})
	if !proved && !place.Leave() && errors.Is(err, net.ErrClosed) && f.ctx.Err() == nil {
		err = errDropped
	}
	if err == nil {
		if g.purpose == forCalls {
			err = f.answerCalls(conn, g.from)
		} else {
			err = f.answerReads(conn)
		}
	}
	if err != nil && f.ctx.Err() == nil {
		f.options.Observe(&StreamError{Remote: conn.RemoteAddr(), From: g.from, Proved: proved, Err: err})
	}
}

// admit lets a rank of the job in. It calls proved when the opener has proved
// that it has the secret, and goes on if that succeeds. While many are
// half-open, an opener has greetingLimit to say who it is.
func (f *Fabric) admit(conn net.Conn, crowded bool, proved func() error) (greeting, error) {
	end := time.Now().Add(f.options.OpenTimeout)
	if err := conn.SetDeadline(end); err != nil {
		return greeting{}, err
	}
	ctx, cancel := context.WithDeadline(f.ctx, end)
	defer cancel()
	var on steps
	if crowded && greetingLimit < f.options.OpenTimeout {
		if err := conn.SetReadDeadline(time.Now().Add(greetingLimit)); err != nil {
			return greeting{}, err
		}
		on.greeted = func() error { return conn.SetReadDeadline(end) }
	}
	on.proved = func() error {
		if err := proved(); err != nil || f.options.Authority == nil {
			return err
		}
		select {
		case f.vouching <- struct{}{}:
			context.AfterFunc(ctx, func() { <-f.vouching }) // ctx ends with this call
			return nil
		case <-ctx.Done():
			return fmt.Errorf("waiting to ask the authority about it: %w", ctx.Err())
		}
	}
	g, err := f.identity.accept(ctx, conn, on)
	if err != nil {
		drain(conn)
		return g, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.lives[g.from]; l != nil && l.peer.Incarnation > g.incarnation {
		return g, fmt.Errorf("incarnation %d was replaced by %d", g.incarnation, l.peer.Incarnation)
	}
	if f.count[g.from] >= inbound {
		return g, fmt.Errorf("it has %d streams open here, more than it needs", inbound)
	}
	if v := f.here[conn]; v != nil {
		v.rank, v.proved = g.from, true
		f.count[g.from]++
	}
	return g, errors.Join(conn.SetDeadline(time.Time{}), tune(conn))
}

func (f *Fabric) forget(conn net.Conn) {
	_ = conn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.here[conn]; v != nil && v.proved {
		if f.count[v.rank]--; f.count[v.rank] == 0 {
			delete(f.count, v.rank)
		}
	}
	delete(f.here, conn)
}
