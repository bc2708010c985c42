package members

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"cascadekv/internal/halfopen"
	"cascadekv/internal/loglimit"

	"github.com/hashicorp/memberlist"
)

const (
	// halfOpen is how many gossip streams may be open whose opener has not
	// proved that it has the secret. More push out the oldest of the network
	// that has most.
	halfOpen = 128

	// proofLimit bounds the proof of one stream, helloLimit that of one that
	// came while more than half of halfOpen were there.
	proofLimit = 3 * time.Second
	helloLimit = 300 * time.Millisecond
)

// errDropped ends the proof that was under way for longest when too many were.
var errDropped = errors.New("members: dropped to make room: too many gossip streams that proved nothing are open")

// transport is memberlist's, with streams whose both sides know the secret.
type transport struct {
	memberlist.NodeAwareTransport
	key     streamKey
	log     *slog.Logger
	refused loglimit.Limiter

	half    *halfopen.Table
	streams chan net.Conn
	ctx     context.Context // ends with Shutdown
	stop    context.CancelFunc
	pumped  chan struct{} // closed when no more streams come
	work    sync.WaitGroup
}

// newTransport returns a transport over base, which it shuts down in the end.
func newTransport(base memberlist.NodeAwareTransport, key streamKey, log *slog.Logger) *transport {
	t := &transport{
		NodeAwareTransport: base, key: key, log: log,
		half: halfopen.NewTable(halfOpen), streams: make(chan net.Conn), pumped: make(chan struct{}),
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	go t.pump()
	return t
}

// listen opens the TCP and UDP sockets of gossip, on one port. The port that the
// kernel chooses for the one may be taken for the other: then it is asked again.
func listen(host string, port int, logger *log.Logger) (nt *memberlist.NetTransport, err error) {
	for range 10 {
		nt, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{host}, BindPort: port, Logger: logger,
		})
		if err == nil {
			return nt, nil
		}
		if strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // memberlist passes on its text alone
			err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
		}
		if port != 0 {
			return nil, err
		}
	}
	return nil, err
}

// pump takes streams until the sockets are closed.
func (t *transport) pump() {
	defer close(t.pumped)
	for {
		select {
		case conn := <-t.NodeAwareTransport.StreamCh():
			place, crowded := t.half.Add(conn)
			t.work.Go(func() { t.receive(conn, place, crowded) })
		case <-t.ctx.Done():
			return
		}
	}
}

// receive passes a stream on once its opener has proved that it has the secret.
func (t *transport) receive(conn net.Conn, place *halfopen.Place, crowded bool) {
	defer context.AfterFunc(t.ctx, func() { _ = conn.Close() })()
	limit := proofLimit
	if crowded {
		limit = helloLimit
	}
	err := conn.SetDeadline(time.Now().Add(limit))
	if err == nil {
		err = t.key.accept(conn)
	}
	if !place.Leave() && (err == nil || errors.Is(err, net.ErrClosed)) {
		err = errDropped
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		t.refuse(conn.RemoteAddr(), err)
		return
	}
	select {
	case t.streams <- conn:
	case <-t.ctx.Done():
		_ = conn.Close()
	}
}

// refuse logs a stranger, and of many at once how many they were.
func (t *transport) refuse(from net.Addr, err error) {
	if t.ctx.Err() != nil {
		return
	}
	host, _, _ := net.SplitHostPort(from.String())
	if n, ok := t.refused.Allow(host); ok {
		t.log.Warn("gossip: stream refused; if its opener belongs to the job, compare its secret and job name with this rank's", "from", from, "err", err, "suppressed", n)
	}
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport. The timeout
// bounds the proof of both sides too.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	end := time.Now().Add(timeout)
	conn, err := t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(t.ctx, func() { _ = conn.Close() })()
	if err = conn.SetDeadline(end); err == nil {
		err = t.key.open(conn)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		if lostEarly(err) {
			err = fmt.Errorf("%w: it closed the stream; is it a rank, of this job and version?", err)
		}
		return nil, fmt.Errorf("%s: %w", a.Addr, err)
	}
	return conn, nil
}

// lostEarly reports whether the other side ended a proof without an answer.
func lostEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// Shutdown implements memberlist.Transport. It waits until no stream is in the
// proof any more.
func (t *transport) Shutdown() error {
	err := t.NodeAwareTransport.Shutdown() // which needs the pump until it returns
	t.stop()
	<-t.pumped
	t.work.Wait()
	return err
}
