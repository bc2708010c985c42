package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

// node is one rank's end, a fabric.Fabric.
type node struct {
	world       *World
	rank        fabric.Rank
	incarnation uint64
	killed      bool // guarded by world.mu

	sent, received traffic

	mu      sync.Mutex
	peers   map[fabric.Rank]fabric.Peer
	handler fabric.Handler
	closed  bool
	own     map[*operation]struct{} // started here
	guests  map[*guest]struct{}     // of others, at the handler
	idle    chan struct{}           // closed when closed and nothing is left; nil before Close
}

// closePatience bounds Close.
const closePatience = 5 * time.Second

// Name implements fabric.Fabric.
func (n *node) Name() string { return "sim" }

// Self implements fabric.Fabric.
func (n *node) Self() fabric.Rank { return n.rank }

// Addr implements fabric.Fabric.
func (n *node) Addr() string { return "" }

// Serve implements fabric.Fabric.
func (n *node) Serve(h fabric.Handler) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("sim: serve on %v: %w", n.rank, fabric.ErrClosed)
	}
	if n.handler != nil {
		return fmt.Errorf("sim: %v is served already", n.rank)
	}
	n.handler = h
	return nil
}

// SetPeer implements fabric.Fabric.
func (n *node) SetPeer(p fabric.Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, known := n.peers[p.Rank]
	if known && p.Incarnation < old.Incarnation {
		return
	}
	n.peers[p.Rank] = p
	if p.State == fabric.Gone || (known && p.Incarnation > old.Incarnation) {
		for o := range n.own {
			if o.to == p.Rank {
				o.cancel(o.failed(fabric.ErrUnreachable))
			}
		}
	}
}

// Close implements fabric.Fabric.
func (n *node) Close() error {
	n.mu.Lock()
	if !n.closed {
		n.closed, n.idle = true, make(chan struct{})
		n.settle()
	}
	for o := range n.own {
		o.cancel(o.failed(fabric.ErrClosed))
	}
	idle := n.idle
	n.mu.Unlock()
	n.dismiss(errReset)
	late := time.NewTimer(closePatience)
	defer late.Stop()
	select {
	case <-idle:
		return nil
	case <-late.C:
		return fmt.Errorf("sim: close %v: operations are still under way after %v: a handler does not obey its context", n.rank, closePatience)
	}
}

// settle wakes Close at the end of the last operation. n.mu is held.
func (n *node) settle() {
	if n.idle == nil || len(n.own)+len(n.guests) > 0 {
		return
	}
	select {
	case <-n.idle:
	default:
		close(n.idle)
	}
}

// dismiss ends what others have under way at the handler.
func (n *node) dismiss(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for g := range n.guests {
		g.cancel(why)
	}
}

// guest is an operation at its handler.
type guest struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// admit registers an operation of another rank. The error is errReset.
func (n *node) admit(o *operation) (*guest, fabric.Handler, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.handler == nil {
		return nil, nil, errReset
	}
	g := &guest{}
	g.ctx, g.cancel = context.WithCancelCause(o.ctx)
	n.guests[g] = struct{}{}
	return g, n.handler, nil
}

func (n *node) leave(g *guest) {
	g.cancel(nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.guests, g)
	n.settle()
}

// Why a message had no effect.
var (
	errLost  = errors.New("lost")
	errReset = errors.New("nobody is there")
)

// operation is a Call or Read from its caller's side.
type operation struct {
	node   *node
	to     fabric.Rank
	what   string
	caller context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	wants  uint64 // incarnation; 0: any
}

func (n *node) begin(ctx context.Context, to fabric.Rank, what string) (*operation, error) {
	o := &operation{node: n, to: to, what: what, caller: ctx}
	if _, ok := ctx.Deadline(); !ok {
		return nil, o.failed(errors.New("the context has no deadline: give it one"))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, o.failed(fabric.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, o.failed(err)
	}
	p := n.peers[to]
	if p.State == fabric.Gone {
		return nil, o.failed(fabric.ErrUnreachable)
	}
	o.wants = p.Incarnation
	o.ctx, o.cancel = context.WithCancelCause(ctx)
	n.own[o] = struct{}{}
	return o, nil
}

func (o *operation) end() {
	o.cancel(nil)
	n := o.node
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own, o)
	n.settle()
}

func (o *operation) failed(err error) error { return fmt.Errorf("sim: %s %v: %w", o.what, o.to, err) }

// ended is the error of an operation whose ctx is done.
func (o *operation) ended() error {
	if err := context.Cause(o.ctx); errors.Is(err, fabric.ErrClosed) || errors.Is(err, fabric.ErrUnreachable) {
		return err
	}
	return o.failed(o.caller.Err())
}

// silence is what follows a lost message.
func (o *operation) silence() error {
	<-o.ctx.Done()
	return o.ended()
}

// outcome turns the fate of a message into the operation's error.
func (o *operation) outcome(err error) error {
	switch {
	case err == nil && o.ctx.Err() == nil:
		return nil
	case o.ctx.Err() != nil:
		return o.ended()
	case errors.Is(err, errLost):
		return o.silence()
	case errors.Is(err, errReset):
		return o.failed(fabric.ErrUnreachable)
	}
	return o.failed(err)
}

// carry moves a message over a link and returns the node that received it.
func (o *operation) carry(from *node, to fabric.Rank, bytes int) (*node, error) {
	if from.rank != to {
		from.sent.count(bytes)
	}
	delay, lost := o.node.world.chance(from.rank, to)
	if lost {
		return nil, errLost
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-o.ctx.Done():
			return nil, errLost
		}
	}
	n, err := o.node.world.route(from, to)
	if err == nil && from.rank != to {
		n.received.count(bytes)
	}
	return n, err
}

// reach sends a request and admits it at the peer's handler.
func (o *operation) reach(bytes int) (*node, *guest, fabric.Handler, error) {
	n, err := o.carry(o.node, o.to, bytes)
	if err == nil && o.wants > 0 && n.incarnation != o.wants {
		err = errReset
	}
	if err != nil {
		return nil, nil, nil, err
	}
	g, h, err := n.admit(o)
	return n, g, h, err
}

// Call implements fabric.Fabric.
func (n *node) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	if len(req) > fabric.MaxMessage {
		return nil, fmt.Errorf("sim: call %v with %d bytes: %w", to, len(req), fabric.ErrTooLarge)
	}
	o, err := n.begin(ctx, to, "call")
	if err != nil {
		return nil, err
	}
	defer o.end()
	answer, remote, err := o.ask(req)
	if err = o.outcome(err); err != nil {
		return nil, err
	}
	if remote != nil {
		return nil, remote
	}
	return answer, nil
}

// ask is one exchange: an answer, or the handler's error, or the
// fate of the messages.
func (o *operation) ask(req []byte) (answer []byte, remote *fabric.RemoteError, err error) {
	peer, g, h, err := o.reach(len(req))
	if err != nil {
		return nil, nil, err
	}
	answer, failure := h.Answer(g.ctx, o.node.rank, req)
	ended := g.ctx.Err() != nil
	cause := context.Cause(g.ctx)
	peer.leave(g)
	if ended {
		return nil, nil, cause
	}
	if failure == nil && len(answer) > fabric.MaxMessage {
		failure = fmt.Errorf("the answer has %d bytes: %w", len(answer), fabric.ErrTooLarge)
	}
	if failure != nil {
		answer, remote = nil, &fabric.RemoteError{Peer: o.to, Text: failure.Error()}
	}
	_, err = o.carry(peer, o.node.rank, len(answer))
	return answer, remote, err
}

// Read implements fabric.Fabric.
func (n *node) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	o, err := n.begin(ctx, from, "read from")
	if err != nil {
		return err
	}
	defer o.end()
	if src.Length < 0 || int64(len(dst)) != src.Length {
		return o.failed(fmt.Errorf("the source has %d bytes, the destination %d", src.Length, len(dst)))
	}
	if src.Length > fabric.MaxRead {
		return o.failed(fabric.ErrTooLarge)
	}
	half := src.Length / 2
	if half > 0 {
		first := src
		first.Length = half
		if err := o.outcome(o.fetch(first, dst[:half])); err != nil {
			return err
		}
		src.Offset, src.Length, dst = src.Offset+half, src.Length-half, dst[half:]
	}
	return o.outcome(o.fetch(src, dst))
}

// fetch copies one piece.
func (o *operation) fetch(src fabric.Source, dst []byte) error {
	peer, g, h, err := o.reach(0)
	if err != nil {
		return err
	}
	hold, failure := h.Hold(src)
	if failure == nil {
		copy(dst, hold.Bytes())
		hold.Release()
	}
	ended, cause := g.ctx.Err() != nil, context.Cause(g.ctx)
	peer.leave(g)
	if ended {
		return cause
	}
	if _, err := o.carry(peer, o.node.rank, len(dst)); err != nil {
		return err
	}
	if failure != nil && !errors.Is(failure, fabric.ErrStale) {
		return &fabric.RemoteError{Peer: o.to, Text: failure.Error()}
	}
	return failure
}
