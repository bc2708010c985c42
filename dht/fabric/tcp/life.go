package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
	"cascadekv/internal/rawfd"
)

const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// life is what is known of a peer and open to it, until its incarnation or
// its being there changes.
type life struct {
	fabric *Fabric
	peer   fabric.Peer
	ctx    context.Context
	cancel context.CancelFunc

	slots chan struct{} // taken by reads: one for each payload stream

	mu      sync.Mutex
	over    bool
	stream  *callStream
	opening chan struct{} // closed when the attempt to open stream has ended; nil when there is none
	wires   map[*wire]struct{}
	idle    []*wire

	failed  error         // of the last attempt to open a stream
	retry   time.Time     // no attempt before
	backoff time.Duration // after the next failure
}

func newLife(f *Fabric, p fabric.Peer) *life {
	l := &life{fabric: f, peer: p, slots: make(chan struct{}, f.options.Streams), wires: map[*wire]struct{}{}, backoff: firstBackoff}
	l.ctx, l.cancel = context.WithCancel(f.ctx)
	return l
}

// finish ends everything under way to the peer. It does not wait for it.
func (l *life) finish() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.stream != nil {
		l.stream.end(errOver)
	}
	for w := range l.wires {
		w.interrupt()
	}
	for _, w := range l.idle {
		l.fabric.idle.remove(w)
		w.close()
		delete(l.wires, w)
	}
	l.idle = nil
}

var errOver = errors.New("the peer is gone or was replaced")

// connect opens a stream. Attempts too soon after one that failed fail alike.
func (l *life) connect(ctx context.Context, p purpose) (net.Conn, error) {
	l.mu.Lock()
	if l.failed != nil && time.Now().Before(l.retry) {
		defer l.mu.Unlock()
		return nil, l.failed
	}
	l.mu.Unlock()
	limit, stop := context.WithTimeout(ctx, l.fabric.options.OpenTimeout)
	defer stop()
	defer context.AfterFunc(l.ctx, stop)()
	conn, err := l.dial(limit, p)
	if end, ok := ctx.Deadline(); err != nil && ok && !time.Now().Before(end) {
		<-ctx.Done() // the dialer's clock was a moment ahead
	}
	if cause := l.fabric.cause(ctx, l); cause != nil {
		if err == nil {
			_ = conn.Close()
		}
		return nil, cause // not the peer's fault
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if limit.Err() != nil {
			err = fmt.Errorf("%w: no stream to %s within %v", fabric.ErrUnreachable, l.peer.Addr, l.fabric.options.OpenTimeout)
		}
		l.fail(err)
		return nil, err
	}
	l.failed = nil
	return conn, nil
}

// fail notes a failed attempt to open a stream. l.mu is held.
func (l *life) fail(err error) {
	l.failed, l.retry = err, time.Now().Add(l.backoff)
	l.backoff = min(2*l.backoff, lastBackoff)
}

// dial is one attempt: connection and handshake.
func (l *life) dial(ctx context.Context, p purpose) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", l.peer.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = l.fabric.identity.open(ctx, conn, p, l.peer.Rank, l.peer.Incarnation)
	if !stop() {
		err = fmt.Errorf("%w: %w", fabric.ErrUnreachable, os.ErrDeadlineExceeded)
	}
	if err == nil {
		err = tune(conn)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("open a stream to %s: %w", l.peer.Addr, err)
	}
	return conn, nil
}

// tune sets what every stream has: the kernel gives it up when the other side
// is silent.
func tune(conn net.Conn) error {
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	err := t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2})
	_, terr := rawfd.Get(t, func(fd int) (struct{}, error) {
		return struct{}{}, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	if err = errors.Join(err, terr); err != nil {
		return fmt.Errorf("set a stream's options: %w", err)
	}
	return nil
}

// drain ends a stream so that what was written is not lost: closing with
// something left to receive would make the kernel drop it.
func drain(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok && t.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn, 4<<10)
	}
}

// lost reports whether an error is the ordinary end of a stream.
func lost(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
