package netio

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/rawfd"
)

const (
	// linger is how long a connection that was just served waits for its next
	// command in the kernel before it waits by the poller: a client in a loop is
	// answered without that detour.
	linger = 5 * time.Millisecond

	// threadPatience is how long a connection waits in the kernel, with a thread,
	// for a client that is in the middle of a value or of a reply; then it waits
	// by the poller until there is more to receive, or room to send more.
	threadPatience = 100 * time.Millisecond

	// StallDeadline bounds each wait for a client in the middle of a value or of
	// a reply.
	StallDeadline = 60 * time.Second

	// hurriedDeadline is StallDeadline while replies that are not read borrow
	// more than they may.
	hurriedDeadline = 5 * time.Second
)

// ErrStalled means that a client did not go on with what it had begun.
var ErrStalled = errors.New("server: client stalled in the middle of a value or reply")

// Conn is the socket of one client, outside the runtime's poller: that would wake
// a thread for every piece of a value that arrives, though nobody waits there.
// Between commands its goroutine waits by a Poller, without a thread; in the middle
// of one it waits in the kernel. One goroutine at a time uses a Conn, but for the
// methods that may be called from any. Its exported fields belong to that goroutine.
//
// Lock order: mu before the poller's.
type Conn struct {
	// Idle reports whether the next byte is the first of a command; nil: it is
	// never.
	Idle func() bool

	// Borrowed returns the bytes of values that the reply which is being sent
	// borrows; nil: none.
	Borrowed func() int64

	// Patience bounds the wait for what comes next; 0: without end.
	Patience time.Duration

	// Until is when all waits of the connection end; zero: never.
	Until time.Time

	// Delegate answers for the connection's goroutine; nil: nothing is delegated. See
	// Served.
	Delegate Delegate

	poller *Poller
	fd     int
	local  bool // a unix socket
	own    bool // of the server's own user, on the unix socket

	pushback []byte           // read before what the socket has
	inbox    *descriptorInbox // nil: no descriptors are received
	vec      []unix.Iovec

	run briefRun

	spin       *spinner
	spinCredit spinCredit
	moved      bool // its thread moved away while it waited for the value that arrives

	exchanged  int64     // about the bytes of values on the socket since it last waited for a command
	sent       int64     // bytes, ever
	bufferSet  bool      // the size of its send buffer is decided
	wideBuffer int64     // bytes that the buffer counts in the poller's; 0: it is narrow
	backlog    []byte    // answers that are not sent yet, see Backlog
	stalledAt  time.Time // when the client counts as stalled that does not read them

	mu struct {
		sync.Mutex // guards fd against Shutdown after Close
		closed     bool
	}
}

// NewConn takes nc's descriptor over; nc is closed in any case.
func (p *Poller) NewConn(nc net.Conn) (*Conn, error) {
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	withoutPace(fd, nc)
	_, local := nc.(*net.UnixConn)
	return p.AdoptConn(fd, local)
}

// AdoptConn returns the connection of a blocking descriptor, which it takes over;
// local is for a unix socket. On error the descriptor is closed.
func (p *Poller) AdoptConn(fd int, local bool) (*Conn, error) {
	c := &Conn{fd: fd, poller: p, spin: &p.spin, spinCredit: fullCredit, local: local}
	if local {
		c.inbox = &descriptorInbox{}
	}
	stall := unix.NsecToTimeval(threadPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &stall); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("server: prepare a connection: %w", err)
	}
	return c, nil
}

// FD returns the descriptor. It stays the connection's.
func (c *Conn) FD() int { return c.fd }

// SetOwn gives the connection the limits of the server's own user on the unix
// socket, or those of everybody else, from whom no descriptors are received.
func (c *Conn) SetOwn(own bool) {
	c.own = own
	if !own {
		c.DropDescriptors()
		c.inbox = nil // the kernel drops what comes
	}
}

// Pushback returns what is read before what the socket has.
func (c *Conn) Pushback() []byte { return c.pushback }

// SetPushback replaces what is read before what the socket has. It keeps p.
func (c *Conn) SetPushback(p []byte) { c.pushback = p }

// Read implements io.Reader. Between commands it waits as long as Patience and
// Until allow, and sends what Backlog kept. Errors: ErrQuiesce, ErrStalled,
// os.ErrDeadlineExceeded, net.ErrClosed, io.EOF, and what the kernel returns.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.pushback) > 0 {
		return c.takePushback(p), nil
	}
	for {
		if c.poller.quiesce.Load() != nil && c.idle() {
			return 0, ErrQuiesce
		}
		if len(c.backlog) > 0 {
			if err := c.sendBacklog(); err != nil {
				return 0, err
			}
		}
		n, err := c.receive(p)
		if !errors.Is(err, ErrStalled) {
			if c.idle() {
				c.exchanged = 0
			}
			return n, err
		}
		if c.delegates() {
			if err := c.poller.delegate(c); err != nil {
				return 0, err
			}
			if len(c.pushback) > 0 {
				return c.takePushback(p), nil
			}
			continue
		}
		if len(c.backlog) == 0 && (c.watchesForNext() || c.lingers()) {
			continue
		}
		if err := c.poller.wait(c, c.wants(), c.waitsFor()); err != nil {
			return 0, err
		}
	}
}

// delegates reports whether the poller is to answer what comes next.
func (c *Conn) delegates() bool {
	return c.run.goesOn && c.Delegate != nil && len(c.backlog) == 0 && c.waitsFor() == 0 && c.idle()
}

// idle reports whether the next byte is the first of a command.
func (c *Conn) idle() bool { return c.Idle != nil && c.Idle() }

func (c *Conn) takePushback(p []byte) int {
	n := copy(p, c.pushback)
	c.pushback = c.pushback[n:]
	return n
}

// waitsFor is how long to wait for what comes next: for a command without end,
// for the rest of one until the client counts as stalled; 0 is without end.
func (c *Conn) waitsFor() time.Duration {
	d := c.Patience
	if d <= 0 && c.Idle != nil && !c.Idle() {
		d = StallDeadline
	}
	d = noLater(d, c.Until)
	if len(c.backlog) > 0 {
		d = noLater(d, c.stalledAt)
	}
	return d
}

// noLater shortens a wait, 0 being without end, so that it ends by a time; zero:
// any.
func noLater(d time.Duration, end time.Time) time.Duration {
	if end.IsZero() {
		return d
	}
	if left := max(time.Until(end), 1); d <= 0 || left < d {
		return left
	}
	return d
}

// wants are the events that end the wait for what comes next.
func (c *Conn) wants() uint32 {
	if len(c.backlog) > 0 {
		return readEvents | unix.EPOLLOUT
	}
	return readEvents
}

// Shutdown ends the waits of the connection's goroutine: for commands, or, when
// all is true, for anything. It may be called from any goroutine.
func (c *Conn) Shutdown(all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	how := unix.SHUT_RD
	if all {
		how = unix.SHUT_RDWR
	}
	_ = unix.Shutdown(c.fd, how) // fails when the client is gone: just as well
}

// Close closes the socket and the descriptors that nobody took.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	c.poller.forget(c)
	c.poller.buffers.giveBack(c)
	c.DropDescriptors()
	_ = unix.Close(c.fd) // what the kernel could complain of, nobody can mend
}

// HungUp reports whether the client has shut its end down for writing, or is
// gone.
func (c *Conn) HungUp() bool {
	fds := [1]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 && err == nil
}

// Peer describes who is at the other end, for people. It may be called from any
// goroutine.
func (c *Conn) Peer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return "it ends"
	}
	if c.local {
		if cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			return fmt.Sprintf("process %d of uid %d", cred.Pid, cred.Uid)
		}
		return "unix socket"
	}
	ip, port := peerAddress(c.fd)
	if ip == nil {
		return "tcp"
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// Process returns the process at the other end of a unix socket, 0 where it is not known.
// It may be called from any goroutine.
func (c *Conn) Process() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || !c.local {
		return 0
	}
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// IP returns the address at the other end, nil for a unix socket and for a client
// that is gone. It may be called from any goroutine.
func (c *Conn) IP() net.IP {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.local {
		return nil
	}
	ip, _ := peerAddress(c.fd)
	return ip
}

func peerAddress(fd int) (net.IP, int) {
	switch a, _ := unix.Getpeername(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return net.IP(a.Addr[:]), a.Port
	case *unix.SockaddrInet6:
		return net.IP(a.Addr[:]), a.Port
	}
	return nil, 0
}

// QueuedBytes returns how much memory the kernel has for what was sent and not
// read. It may be called from any goroutine.
func (c *Conn) QueuedBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return 0
	}
	n, err := unix.IoctlGetInt(c.fd, unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return int64(n)
}
