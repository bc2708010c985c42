package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/cores"
	"cascadekv/internal/fault"
	"cascadekv/internal/handover"
)

// ErrUnsafeSocket means that the place of the unix socket is open to others.
var ErrUnsafeSocket = errors.New("server: socket directory is not safe")

// Options describe a server. The store is borrowed: Shutdown does not close it.
type Options struct {
	Store     *cascade.Store
	Node      *dht.Node // the rank's part of the job's store; nil: it is alone
	Socket    string    // path of the unix socket, "" for none
	Listen    string    // host:port of TCP clients, "" for none
	Admin     string    // host:port of the HTTP side, "" for none
	AllowUIDs []int     // may connect besides the rank's own user and root
	Version   string
	Limits    Limits

	// Lend lets large values go out by reference to the store's memory. Not where
	// anything else than this kernel knows that memory by its address; see
	// cascade.View.Lend.
	Lend bool

	// Spin bounds how long a connection's thread watches for the client's next
	// bytes before it goes to sleep; 0: not at all.
	Spin time.Duration

	// AnswerWithin bounds how long a command waits for the store; what is not
	// there by then is a miss, or found no room. Default 4.5 s: less than what
	// clients wait for. What moves blocks between regions and the store, and
	// CASCADE.DRAIN, are bounded otherwise.
	AnswerWithin time.Duration

	Log *slog.Logger // default slog.Default

	// Inherited is what an earlier program of this process handed over, nil for
	// nothing. The store was opened with its claims. It is used up.
	Inherited *handover.State

	// Upgrade has another program take this one's place, by HandOver, and returns
	// why it does not. ctx ends when connections were waited for long enough.
	// nil: it is refused.
	Upgrade func(ctx context.Context, u Upgrade) error
}

// Limits are the options that may change while the server runs.
type Limits struct {
	Password       string        // clients must AUTH with it; "" for none
	MaxConnections int           // 0: no bound
	Lease          time.Duration // after EXISTS and GET; 0: none
	FixedMiss      bool          // answer misses of fixed-length clients in their length
}

// Server serves clients. Its methods are safe for concurrent use.
type Server struct {
	opt    Options
	log    *slog.Logger
	limits atomic.Pointer[Limits]
	born   time.Time

	listeners []gate
	lot       *parking
	spin      spinner
	budget    *budget
	admin     *gate // nil: none
	visitors  visitors
	metrics   *metrics
	jobs      *pool

	mu     sync.Mutex
	conns  map[*conn]struct{}
	nextID uint64
	ending bool
	wg     sync.WaitGroup
}

// New opens the listeners; clients are answered once Serve runs.
// Errors: ErrUnsafeSocket, and what listening returns.
func New(o Options) (*Server, error) {
	s := &Server{opt: o, log: o.Log, born: time.Now(), conns: map[*conn]struct{}{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.SetLimits(o.Limits)
	if cores.Count() > 1 { // on the only one nobody else could send what is watched for
		s.spin.window = o.Spin
	}
	s.metrics = newMetrics(s)
	s.budget = newBudget(o.Store)
	s.jobs = newPool(o.Store)
	var err error
	if s.lot, err = newParking(); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		s.closeListeners()
		s.lot.close()
		return nil, err
	}
	return s, nil
}

// SetLimits replaces the limits for everything that follows.
func (s *Server) SetLimits(l Limits) { s.limits.Store(&l) }

// ReloadFailed notes in the metrics that the configuration on disk was refused.
func (s *Server) ReloadFailed() { s.metrics.reloadOK.Store(false) }

// Reloaded notes in the metrics that the configuration was read again.
func (s *Server) Reloaded() { s.metrics.reloadOK.Store(true) }

func (s *Server) listen() error {
	if s.opt.Inherited != nil {
		if err := s.inherit(); err != nil {
			return err
		}
	}
	there := map[string]bool{}
	for _, g := range s.listeners {
		there[g.Addr().Network()] = true
	}
	if s.opt.Socket != "" && !there["unix"] {
		l, err := listenUnix(s.opt.Socket)
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, gate{s.watched(l), s.lot})
	}
	if s.opt.Listen != "" && !there["tcp"] {
		l, err := net.Listen("tcp", s.opt.Listen)
		if err != nil {
			return fmt.Errorf("server: listen on %s: %w; choose another address (--listen)", s.opt.Listen, err)
		}
		s.listeners = append(s.listeners, gate{l, s.lot})
	}
	if s.opt.Admin != "" && s.admin == nil {
		l, err := net.Listen("tcp", s.opt.Admin)
		if err != nil {
			return fmt.Errorf("server: listen on %s: %w; choose another address (--admin-listen)", s.opt.Admin, err)
		}
		s.admin = &gate{l, s.lot}
	}
	return nil
}

// listenUnix makes the socket with mode 0600 in a directory that only this
// user may write to. The socket file of a rank that is gone is replaced.
func listenUnix(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("server: directory of the socket: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("server: %s: another rank answers there; give this one another --socket", path)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("server: stale socket: %w", err)
		}
	}
	// Between bind and chmod only the umask protects the socket.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("server: listen on %s: %w; the path may have at most 107 bytes", path, err)
	}
	return l, nil
}

// checkDir refuses a directory in which another user could swap the socket for
// one of their own. Directories with the sticky bit, such as /tmp, are fine.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("server: directory of the socket: %w", err)
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if st.Mode().Perm()&0o022 != 0 && st.Mode()&os.ModeSticky == 0 || uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("%w: %s (mode %v, uid %d) can be changed by others; chmod 700 it or choose another (--socket)", ErrUnsafeSocket, dir, st.Mode(), uid)
	}
	return nil
}

// Addr returns the address of TCP clients, nil when there is none.
func (s *Server) Addr() net.Addr {
	for _, l := range s.listeners {
		if l.Addr().Network() == "tcp" {
			return l.Addr()
		}
	}
	return nil
}

// AdminAddr returns the address of the HTTP side, nil when there is none.
func (s *Server) AdminAddr() net.Addr {
	if s.admin == nil {
		return nil
	}
	return s.admin.Addr()
}

// sweepEvery is how often expired names and leases are looked for.
const sweepEvery = time.Second

// Serve answers clients until Shutdown, then returns nil; before that it
// returns the error that ended it.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, len(s.listeners)+1)
	s.resume()
	for _, l := range s.listeners {
		s.log.Info("listening", "network", l.Addr().Network(), "address", l.Addr().String())
		go func() { failed <- s.accept(l) }()
	}
	if s.admin != nil {
		s.log.Info("listening", "network", "http", "address", s.admin.Addr().String())
		h := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: 10 * time.Second, ConnState: s.visitors.see}
		go func() { failed <- h.Serve(s.admin) }()
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-failed:
			if s.isEnding() {
				return nil
			}
			return fmt.Errorf("server: %w", err)
		case <-tick.C:
			s.opt.Store.Sweep()
			s.lookAtSocket()
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// acceptPause is waited after an accept that failed for want of descriptors.
const acceptPause = 50 * time.Millisecond

func (s *Server) accept(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			s.log.Error("no more descriptors; raise the limit (ulimit -n)", "err", err)
			time.Sleep(acceptPause)
			continue
		} else if err != nil {
			return err
		}
		c, refusal := s.admit(nc)
		if c == nil {
			if refusal != "" {
				s.refuse(nc, refusal)
			}
			continue
		}
		go func() {
			defer fault.Guard()()
			defer s.wg.Done()
			c.serve()
			s.leave(c)
		}()
	}
}

// unixBuffer is the send buffer of unix sockets, in bytes: a reply that fits it
// is written without waiting for the reader. It is a hint: without privilege
// the kernel grants net.core.wmem_max at most.
const unixBuffer = 4 << 20

// admit takes a connection over, or says why it is refused.
func (s *Server) admit(nc net.Conn) (*conn, string) {
	uid, err := peerUID(nc)
	if err := s.allowed(nc, uid, err); err != nil {
		s.log.Warn("connection refused", "from", nc.RemoteAddr().String(), "uid", uid, "err", err)
		s.metrics.refused.Add(1)
		return nil, "ERR this rank serves its own user only"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.limits.Load().MaxConnections; n > 0 && len(s.conns) >= n || s.ending {
		s.metrics.refused.Add(1)
		return nil, "ERR max number of clients reached"
	}
	s.nextID++
	u, local := nc.(*net.UnixConn)
	if local {
		_ = u.SetWriteBuffer(unixBuffer) // a hint: the kernel may grant less
	}
	c, err := newConn(s, nc, s.nextID)
	if err != nil {
		s.log.Error("connection lost", "err", err)
		return nil, ""
	}
	c.own = local && uid == os.Geteuid()
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.metrics.accepted.Add(1)
	return c, ""
}

func (s *Server) refuse(nc net.Conn, why string) {
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	_, _ = nc.Write([]byte("-" + why + "\r\n"))
	_ = nc.Close()
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.opt.Store.Unlease(c.owner)
}

func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
}

// Shutdown stops accepting, lets every connection end the command it is in,
// and closes them; those still busy when ctx ends are cut.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	for c := range s.conns {
		c.interrupt()
	}
	s.mu.Unlock()
	s.closeListeners()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		s.lot.close()
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.wire.interrupt(true)
	}
	s.mu.Unlock()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	return fmt.Errorf("server: connections cut: %w", ctx.Err())
}
