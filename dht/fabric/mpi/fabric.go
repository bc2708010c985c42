//go:build mpi

package mpi

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/mpi"
)

// Fabric is a rank's end of the fabric over MPI. See package fabric for what
// its methods promise.
type Fabric struct {
	comm    *mpi.Comm
	self    fabric.Rank
	verdict Verdict
	peers   []peer // by rank
	memory  memory
	handler atomic.Pointer[fabric.Handler]
	ids     atomic.Uint64

	life context.Context // ends with Close
	end  context.CancelFunc

	queueMu sync.Mutex
	queue   []poster // for the driver to post
	queued  atomic.Int32

	drive  sync.Mutex // held by the driver; taken with TryLock only
	driven driven     // guarded by drive

	askedMu sync.Mutex
	asked   []asked // reads that the watch shall serve
	waiting atomic.Int32

	watch    napper
	watching atomic.Bool   // the watch is the driver
	wanting  atomic.Int32  // callers that would like to be it
	handling atomic.Int64  // handler calls and self reads under way
	shift    atomic.Uint64 // which watch goroutine is on duty
	holding  atomic.Uint64 // odd while the watch is in Handler.Hold
	watchers sync.WaitGroup
	copies   atomic.Int64 // one-sided ones started
	closing  atomic.Bool  // Serve and new operations fail
	over     atomic.Bool  // the watch ends
	closed   sync.Once
	closeErr error
}

// peer is a rank as SetPeer set it.
type peer struct {
	mu          sync.Mutex
	incarnation uint64
	state       atomic.Uint32 // a fabric.State
}

// New makes the fabric of a world. All ranks call it; one world has one fabric.
// All ranks are alive until SetPeer changes that. The world must be stopped
// after Close.
func New(w *mpi.World, o Options) (*Fabric, error) {
	f := &Fabric{
		comm: w.Comm, self: fabric.Rank(w.Rank()), peers: make([]peer, w.Size()),
		verdict: Verdict{MPI: w.Version(), Thread: w.Thread(), RMA: rmaOff},
	}
	f.watch.init()
	f.life, f.end = context.WithCancel(context.Background())
	if err := f.driven.init(f); err != nil {
		return nil, err
	}
	if o.OneSidedFrom > 0 {
		if err := f.driven.probe(o, &f.verdict); err != nil {
			return nil, err
		}
	}
	f.watchers.Go(f.superviseWatch)
	f.startWatch()
	return f, nil
}

// Verdict is what the MPI under the fabric can do.
func (f *Fabric) Verdict() Verdict { return f.verdict }

// Copies is how many one-sided copies this rank has started.
func (f *Fabric) Copies() int64 { return f.copies.Load() }

// Name implements fabric.Fabric.
func (f *Fabric) Name() string { return "mpi" }

// Self implements fabric.Fabric.
func (f *Fabric) Self() fabric.Rank { return f.self }

// Addr implements fabric.Fabric: MPI ranks need none.
func (f *Fabric) Addr() string { return "" }

// Serve implements fabric.Fabric. Requests that came before fail with
// ErrUnreachable at their end.
func (f *Fabric) Serve(h fabric.Handler) error {
	if f.closing.Load() {
		return fmt.Errorf("fabric mpi: serve: %w", fabric.ErrClosed)
	}
	if !f.handler.CompareAndSwap(nil, &h) {
		return errors.New("fabric mpi: Serve was called before")
	}
	return nil
}

// SetPeer implements fabric.Fabric.
func (f *Fabric) SetPeer(p fabric.Peer) {
	if int(p.Rank) >= len(f.peers) || p.Rank == f.self {
		return
	}
	known := &f.peers[p.Rank]
	known.mu.Lock()
	defer known.mu.Unlock()
	if p.Incarnation < known.incarnation {
		return // late news of an earlier life
	}
	replaced := known.incarnation != 0 && p.Incarnation > known.incarnation
	known.incarnation = p.Incarnation
	known.state.Store(uint32(p.State))
	if replaced || p.State == fabric.Gone {
		f.push(ending{f, fabric.ErrUnreachable, &p.Rank})
		f.watch.wake()
	}
}

// state is what membership thinks of a rank.
func (f *Fabric) state(r fabric.Rank) fabric.State { return fabric.State(f.peers[r].state.Load()) }

// reachable is nil if the peer may be asked.
func (f *Fabric) reachable(to fabric.Rank) error {
	switch {
	case f.closing.Load():
		return fabric.ErrClosed
	case int(to) >= len(f.peers):
		return fmt.Errorf("%w: the world has %d ranks", fabric.ErrUnreachable, len(f.peers))
	case f.state(to) == fabric.Gone:
		return fabric.ErrUnreachable
	}
	return nil
}

// Call implements fabric.Fabric.
func (f *Fabric) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	answer, err := f.call(ctx, to, req)
	if err != nil {
		if _, ok := errors.AsType[*fabric.RemoteError](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("fabric mpi: call of %v with %d bytes: %w", to, len(req), err)
	}
	return answer, nil
}

func (f *Fabric) call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	if err := f.admit(ctx, to, int64(len(req)), fabric.MaxMessage); err != nil {
		return nil, err
	}
	if to == f.self {
		return f.callSelf(ctx, req)
	}
	o := &op{f: f, peer: to, id: f.ids.Add(1), wake: make(chan struct{}, 1)}
	o.deadline, _ = ctx.Deadline()
	h := header{kind: kindCall, id: o.id, timeout: max(time.Until(o.deadline), 1)}
	var err error
	if o.control, o.body, err = f.message(to, h, req); err != nil {
		return nil, err
	}
	if err := f.do(ctx, o); err != nil {
		return nil, err
	}
	return o.answer, nil
}

// Read implements fabric.Fabric.
func (f *Fabric) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	if err := f.read(ctx, from, src, dst); err != nil {
		return wrapRead(from, src, err)
	}
	return nil
}

func (f *Fabric) read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	if err := f.admit(ctx, from, src.Length, fabric.MaxRead); err != nil {
		return err
	}
	if src.Length != int64(len(dst)) {
		return fmt.Errorf("the memory has %d bytes", len(dst))
	}
	if from == f.self {
		return f.readSelf(ctx, src, dst)
	}
	o := &op{f: f, peer: from, id: f.ids.Add(1), wake: make(chan struct{}, 1), dst: dst, src: src, read: true}
	o.deadline, _ = ctx.Deadline()
	var body [readSize]byte
	encodeSource(body[:], src)
	h := header{kind: kindRead, id: o.id, timeout: max(time.Until(o.deadline), 1)}
	var err error
	if o.control, _, err = f.message(from, h, body[:]); err != nil {
		return err
	}
	return f.do(ctx, o)
}

// admit checks what can be checked before anything is sent.
func (f *Fabric) admit(ctx context.Context, to fabric.Rank, n, limit int64) error {
	if err := f.reachable(to); err != nil {
		return err
	}
	if n > limit {
		return fmt.Errorf("%w: at most %d bytes", fabric.ErrTooLarge, limit)
	}
	if n < 0 {
		return errors.New("negative length")
	}
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("the context has no deadline")
	}
	return ctx.Err()
}

// do starts an operation and waits for its end.
func (f *Fabric) do(ctx context.Context, o *op) error {
	if f.takeDrive(o) {
		o.post()
		f.lead(ctx, o)
	} else {
		f.push(o)
		o.lead.Store(true) // whoever drives may have looked into the queue before
	}
	for {
		if o.state.Load() == opFinished {
			return o.err
		}
		if o.lead.Swap(false) && f.drive.TryLock() {
			f.lead(ctx, o)
			continue
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			if err, ok := o.abandon(ctx.Err()); ok {
				return err
			}
			<-o.wake // its end is being written down
		}
	}
}

// takeDrive tries to become the driver. The watch gives way within
// microseconds; a caller that leads does not, but takes our operation along.
func (f *Fabric) takeDrive(o *op) bool {
	if f.drive.TryLock() {
		return true
	}
	if !f.watching.Load() {
		return false
	}
	f.wanting.Add(1)
	defer f.wanting.Add(-1)
	for range 1000 {
		if f.drive.TryLock() {
			return true
		}
		runtime.Gosched()
	}
	return false
}

// lingering is the error of a read whose memory is still MPI's.
type lingering struct {
	error
	done chan struct{}
}

// Done implements fabric.Lingering.
func (l *lingering) Done() <-chan struct{} { return l.done }

// Unwrap gives the cause.
func (l *lingering) Unwrap() error { return l.error }

// wrapRead reports what was read, and keeps a lingering error lingering.
func wrapRead(from fabric.Rank, src fabric.Source, err error) error {
	l, lingers := errors.AsType[*lingering](err)
	if lingers {
		err = l.error
	}
	err = fmt.Errorf("fabric mpi: read of %d bytes at %d of region %d of %v: %w", src.Length, src.Offset, src.Region, from, err)
	if lingers {
		return &lingering{err, l.done}
	}
	return err
}
