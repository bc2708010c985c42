package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/gpu/direct"
	"cascadekv/internal/admin"
	"cascadekv/internal/admission"
	"cascadekv/internal/cpus"
	"cascadekv/internal/fault"
	"cascadekv/internal/handover"
	"cascadekv/internal/holdings"
	"cascadekv/internal/netio"
	"cascadekv/internal/resp"
	"cascadekv/internal/transfer"
)

// Options describe a server. The store is borrowed: Shutdown does not close it.
type Options struct {
	Store     *cascade.Store
	Node      *dht.Node // the rank's part of the job's store; nil: it is alone
	Socket    string    // path of the unix socket, "" for none
	Listen    string    // host:port of TCP clients, "" for none
	Admin     string    // host:port or absolute path of the HTTP side, "" for none
	AllowUIDs []int     // may connect besides the rank's own user and root
	Version   string
	Limits    Limits

	// Config returns the configuration in force for CONFIG GET, by key; nil: that has
	// only Redis's names.
	Config func() map[string]string

	// ZeroCopy lets large values go out by reference to the store's memory. Not where
	// anything else than this kernel has that memory by its address; see
	// cascade.View.ZeroCopy.
	ZeroCopy bool

	// Rings makes rings; nil: there are none. See transfer.Pool.
	Rings func(bytes int64, write bool) (*direct.Ring, error)

	// Spin bounds how long a connection's thread watches for the client's next
	// bytes before it goes to sleep; 0: not at all.
	Spin time.Duration

	// InFlight bounds the memory of the kernel, in bytes, for large replies that
	// clients have not read; 0 is a sixteenth of the machine's memory, or of the
	// control group's, from 64 MiB to 1 GiB.
	InFlight int64

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
	Shared         int           // descriptors of memory that clients share; 0: no bound
	Lease          time.Duration // after EXISTS and GET; 0: none
	FixedMiss      bool          // answer misses of fixed-length clients in their length
}

// Server serves clients. Its methods are safe for concurrent use.
type Server struct {
	opt    Options
	log    *slog.Logger
	limits atomic.Pointer[Limits]

	secret  atomic.Pointer[string] // the password; another pointer whenever it is another one
	guesses admission.Guesses
	born    time.Time

	listeners []*netio.Listener
	poller    *netio.Poller
	parser    resp.Parser // of the poller's goroutine
	budget    *holdings.Budget
	strangers admission.Unauthenticated[*conn]
	arriving  *admission.Allowance // memory of commands that arrive
	transit   *admission.Allowance // of the arena, for values that arrive
	stalled   *admission.Allowance // of the arena, borrowed by replies that are not read
	admin     *netio.Listener      // nil: none
	http      *admin.Server
	counters  counters
	jobs      *transfer.Pool
	limited   limitedLogs

	mu     sync.Mutex
	conns  map[*conn]struct{}
	nextID uint64
	ending bool
	wg     sync.WaitGroup
}

// New opens the listeners; clients are answered once Serve runs.
// Errors: netio.ErrUnsafeSocket, netio.ErrSocketTaken, and what listening returns.
func New(o Options) (*Server, error) {
	s := &Server{opt: o, log: o.Log, born: time.Now(), conns: map[*conn]struct{}{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.counters.reloadOK.Store(true)
	s.http = admin.New(admin.Options{Snapshot: s.Snapshot, Counters: s.adminCounters, Draining: s.isEnding, Admit: s.admitHTTP})
	s.budget = holdingsBudget(o.Store)
	s.jobs = transfer.NewPool(o.Store, s.log)
	s.jobs.Rings = o.Rings
	s.SetLimits(o.Limits)
	s.arriving = admission.NewAllowance(heldCommands, heldCommands/2)
	memory := o.Store.MemoryCapacity()
	s.transit = admission.NewAllowance(math.MaxInt64, memory/transitShare)
	s.stalled = admission.NewAllowance(memory/stalledShare, memory/stalledShare/2)
	sockets := netio.Config{SendBuffers: o.InFlight, Stalled: s.stalled}
	if cpus.Count() > 1 { // on the only one nobody else could send what is watched for
		sockets.Spin = o.Spin
	}
	var err error
	if s.poller, err = netio.NewPoller(sockets); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		s.closeListeners()
		s.poller.Close()
		return nil, err
	}
	return s, nil
}

// holdingsBudget is that of a store's arena: nothing where there is none.
func holdingsBudget(st *cascade.Store) *holdings.Budget {
	a, _ := st.Arena()
	return holdings.NewBudget(a.Capacity)
}

// SetLimits replaces the limits for everything that follows. With another password
// it ends the connections that came in by the old one.
func (s *Server) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits.Store(&l)
	s.setSecretLocked(l.Password)
	s.jobs.Budget.SetDescriptors(l.Shared)
}

// ReloadFailed notes in the metrics that the configuration on disk was refused.
func (s *Server) ReloadFailed() { s.counters.reloadOK.Store(false) }

// Reloaded notes in the metrics that the configuration was read again.
func (s *Server) Reloaded() { s.counters.reloadOK.Store(true) }

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
		l, err := netio.ListenUnix(s.unixOptions(s.opt.Socket))
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, s.poller.Listen(l))
	}
	if s.opt.Listen != "" && !there["tcp"] {
		l, err := net.Listen("tcp", s.opt.Listen)
		if err != nil {
			return fmt.Errorf("server: listen on %s: %w; choose another address (--listen)", s.opt.Listen, err)
		}
		s.listeners = append(s.listeners, s.poller.Listen(l))
	}
	if s.opt.Admin != "" && s.admin == nil {
		var l net.Listener
		var err error
		if filepath.IsAbs(s.opt.Admin) {
			l, err = netio.ListenUnix(s.unixOptions(s.opt.Admin))
		} else if l, err = net.Listen("tcp", s.opt.Admin); err != nil {
			err = fmt.Errorf("server: listen on %s: %w; choose another address (--admin-listen)", s.opt.Admin, err)
		}
		if err != nil {
			return err
		}
		s.admin = s.poller.Listen(l)
	}
	return nil
}

// unixOptions are those of a unix socket at a path.
func (s *Server) unixOptions(path string) netio.UnixOptions {
	return netio.UnixOptions{Path: path, Others: len(s.opt.AllowUIDs) > 0, Log: s.log}
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

// lookEvery is how often the sockets are looked at, and log lines left out are counted.
const lookEvery = time.Second

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
		go func() { failed <- s.http.Serve(s.admin) }()
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-failed:
			if s.isEnding() {
				return nil
			}
			return fmt.Errorf("server: %w", err)
		case <-tick.C:
			s.logRest()
			for _, l := range s.allListeners() {
				l.CheckFile()
			}
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
			if n, ok := s.limited.refused.Allow("descriptors"); ok {
				s.log.Error("no more descriptors: clients wait; raise the limit (ulimit -n) or lower max_connections", "err", err, "suppressed", n)
			}
			time.Sleep(acceptPause)
			continue
		} else if err != nil {
			return err
		}
		c, refusal := s.admitSoon(nc)
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

// allowed returns nil if a peer may speak at all.
func (s *Server) allowed(uid int, err error) error {
	return admission.Allowed(uid, err, s.opt.AllowUIDs, s.limits.Load().Password != "")
}

// errFull refuses a connection beyond the limit.
const errFull = "ERR max number of clients reached"

// strangersEnd is how long a connection waits for the place of one that has not
// authenticated and was ended.
const strangersEnd = 50 * time.Millisecond

// admitSoon is admit, but it waits for those that end to make room.
func (s *Server) admitSoon(nc net.Conn) (*conn, string) {
	for end := time.Now().Add(strangersEnd); ; time.Sleep(time.Millisecond) {
		c, refusal := s.admit(nc)
		if refusal != errFull {
			return c, refusal
		}
		if s.strangers.Ending(math.MaxInt) == 0 || time.Now().After(end) {
			s.counters.refused.Add(1)
			return nil, refusal
		}
	}
}

// admit takes a connection over, or returns why it is refused.
func (s *Server) admit(nc net.Conn) (*conn, string) {
	uid, err := admission.PeerUID(nc)
	if err := s.allowed(uid, err); err != nil {
		s.logRefused(nc.LocalAddr().Network(), nc, uid, err)
		return nil, "ERR this rank serves its own user only"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, local := nc.(*net.UnixConn)
	if n := s.limitLocked(local && (uid == os.Geteuid() || uid == 0)); n >= 0 && len(s.conns) >= n+s.strangers.Ending(n) || s.ending {
		return nil, errFull
	}
	s.nextID++
	c, err := newConn(s, nc, s.nextID)
	if err != nil {
		s.log.Error("connection lost", "err", err)
		return nil, ""
	}
	c.uid, c.source = uid, admission.Source(uid, admission.RemoteIP(nc))
	c.setOwn(local && uid == os.Geteuid())
	c.bind()
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.counters.accepted.Add(1)
	return c, ""
}

// admitHTTP returns nil if a client may use the HTTP side, which asks for no
// password.
func (s *Server) admitHTTP(nc net.Conn) error {
	uid, err := admission.PeerUID(nc)
	if err == nil && uid == admission.UnknownUID {
		err = fmt.Errorf("%w: it comes from another machine", admission.ErrPeer)
	}
	if err = s.allowed(uid, err); err != nil {
		s.logRefused("admin", nc, uid, err)
	}
	return err
}

// limitLocked is how many connections there may be for another one to be taken,
// -1 for no bound. The last ones are for the owner.
func (s *Server) limitLocked(owner bool) int {
	n := s.limits.Load().MaxConnections
	switch {
	case n <= 0:
		return -1
	case owner:
		return n
	}
	return n - reserved(n)
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
	s.strangers.Remove(c) // not before: as long as it is in conns it must count as ending
	s.opt.Store.Leases().End(c.owner)
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
		s.poller.Close()
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		c.sock.Shutdown(true)
	}
	s.mu.Unlock()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	return fmt.Errorf("server: connections cut: %w", ctx.Err())
}
