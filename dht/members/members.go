package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/loglimit"

	"github.com/hashicorp/memberlist"
)

// Errors of this package, wrapped with what was asked. Test with errors.Is.
var (
	ErrOptions = errors.New("members: the options can not be used")
	ErrClosed  = errors.New("members: closed")
)

// Options say who this rank is and how it finds the others.
type Options struct {
	Self      Member // Rank, Incarnation, Addr and Host; the rest is not read
	Bind      string // host:port of gossip, TCP and UDP; port 0 chooses one
	Advertise string // host:port that others reach it at; "" is Bind, or a private address of the node
	Job       string // ranks of different jobs refuse each other; at most 200 bytes
	Secret    []byte // the job's, at least 16 bytes; the gossip key is derived from it and Job
	Placement uint32 // ring.Version; ranks of another one are refused
	Seeds     []string
	Start     int          // ranks that the job starts with, this one among them; 0: not known
	Log       *slog.Logger // nil logs nothing

	// OnChange is called with every change of another member, and of Replaced for
	// this rank too, in order, from one goroutine: with all together that came since it
	// was called last. It may take its time, and must not call Close. The list is its own.
	// The first call comes when as many are known as the job starts with, when no more have come
	// for five seconds, or StartFor after Start.
	OnChange func([]Event)

	Timers Timers

	transport memberlist.NodeAwareTransport // tests cut it in two
}

// Timers are the paces of gossip and suspicion. Zero is the default: those of a
// LAN, which hold at 256 ranks on two cores where shorter ones flap.
type Timers struct {
	Probe        time.Duration // one member is probed each; 1 s
	ProbeTimeout time.Duration // 500 ms
	Gossip       time.Duration // 200 ms
	PushPull     time.Duration // all is exchanged with one member each; 30 s
	Dial         time.Duration // longest exchange over TCP; 10 s
	RejoinMin    time.Duration // first pause between attempts to join; 500 ms
	RejoinMax    time.Duration // longest pause; 15 s
	SuspectFor   time.Duration // a suspicion lasts, after the last failed call; 15 s
	SuspectAfter int           // failed calls without an answer that make one; 2
}

// Members is who is alive, as this rank sees it. All methods are safe for
// concurrent use.
type Members struct {
	opt    Options
	log    *slog.Logger
	list   *memberlist.Memberlist
	self   meta
	addr   string // of our gossip
	events *queue
	seeds  seeds

	leaving atomic.Bool
	doubted atomic.Int64 // view.doubted: Answered is on the path of every call

	mu   sync.Mutex
	view *view

	refused loglimit.Limiter // what was logged of others
	lines   logWriter        // of memberlist

	transport *transport

	timer   chan struct{} // the time of the next expiry may have changed
	stop    context.CancelFunc
	stopped context.Context
	workers sync.WaitGroup
	ending  sync.Mutex // Leave and Close, one at a time
	drained chan struct{}
}

// Start begins to gossip and returns at once, known to itself only; it joins in
// the background, and keeps trying. ctx bounds Start alone. Errors: ErrOptions,
// those of the network.
func Start(ctx context.Context, opt Options) (*Members, error) {
	opt.Timers = opt.Timers.withDefaults()
	self := meta{
		rank: opt.Self.Rank, incarnation: opt.Self.Incarnation, nonce: rand.Uint32(),
		placement: opt.Placement, addr: opt.Self.Addr, host: opt.Self.Host,
	}
	if err := check(opt, self); err != nil {
		return nil, err
	}
	m := &Members{
		opt: opt, log: opt.Log, self: self,
		events: newQueue(self.rank), timer: make(chan struct{}, 1), drained: make(chan struct{}),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.refused.Every, m.refused.Keys = repeatAfter, repeatKeys
	m.lines = newLogWriter(m.log)
	m.view = newView(self, "", opt.Timers.SuspectAfter, opt.Timers.SuspectFor)
	config, err := m.config(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.gossip(config); err != nil {
		return nil, fmt.Errorf("members: gossip of %v on %s does not start: %w", self.rank, opt.Bind, err)
	}
	m.addr = m.list.LocalNode().Address()
	m.mu.Lock()
	m.view.seats[self.rank].holder.gossip = m.addr
	m.mu.Unlock()
	m.seeds.add(opt.Seeds)
	m.stopped, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.workers.Go(m.keepJoining)
	m.workers.Go(m.keepExpiring)
	m.workers.Go(m.keepCounting)
	go m.deliver()
	return m, nil
}

// gossip opens the sockets and starts memberlist on them.
func (m *Members) gossip(c *memberlist.Config) error {
	proof, err := newStreamKey(m.opt.Secret, m.opt.Job)
	if err != nil {
		return err
	}
	base := m.opt.transport
	if base == nil {
		sockets, err := listen(c.BindAddr, c.BindPort, c.Logger)
		if err != nil {
			return err
		}
		if c.BindPort == 0 {
			c.BindPort = sockets.GetAutoBindPort()
			c.AdvertisePort = cmp.Or(c.AdvertisePort, c.BindPort)
		}
		base = sockets
	}
	m.transport = newTransport(base, proof, m.log)
	c.Transport = m.transport
	if m.list, err = memberlist.Create(c); err != nil {
		return errors.Join(err, m.transport.Shutdown())
	}
	return nil
}

func check(opt Options, self meta) error {
	if len(opt.Secret) < 16 {
		return fmt.Errorf("%w: the secret has %d bytes; give 16 or more", ErrOptions, len(opt.Secret))
	}
	if opt.Job == "" || len(opt.Job) > 200 || !clean(opt.Job) {
		return fmt.Errorf("%w: job %q; give 1 to 200 printable bytes", ErrOptions, opt.Job)
	}
	if _, err := self.encode(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

func (t Timers) withDefaults() Timers {
	or := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	lan := memberlist.DefaultLANConfig()
	or(&t.Probe, lan.ProbeInterval)
	or(&t.ProbeTimeout, lan.ProbeTimeout)
	or(&t.Gossip, lan.GossipInterval)
	or(&t.PushPull, lan.PushPullInterval)
	or(&t.Dial, lan.TCPTimeout)
	or(&t.RejoinMin, 500*time.Millisecond)
	or(&t.RejoinMax, 15*time.Second)
	or(&t.SuspectFor, 15*time.Second)
	if t.SuspectAfter <= 0 {
		t.SuspectAfter = 2
	}
	return t
}

// Addr is the host:port of this rank's gossip: a seed for others.
func (m *Members) Addr() string { return m.addr }

// List returns every rank this one has known, itself included, by number. A
// rank that is gone stays in it with State Gone.
func (m *Members) List() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view.list()
}

// Reached lists the gossip addresses, host:port, of the others that this rank
// takes for alive: a process that follows it at once can join them.
func (m *Members) Reached() []string {
	var addrs []string
	for _, n := range m.list.Members() {
		if addr := n.Address(); addr != m.addr {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// AddSeeds adds gossip addresses to join, host:port.
func (m *Members) AddSeeds(addrs ...string) { m.seeds.add(addrs) }

// Suspect reports a call to a rank that failed with why. After some in a row
// (Timers.SuspectAfter) the rank is Suspect until it answers, gossip decides,
// or time passes.
func (m *Members) Suspect(rank fabric.Rank, why error) {
	text := "a call failed"
	if why != nil {
		text = why.Error()
	}
	m.apply(func(v *view) []Event { return v.fail(rank, text, time.Now()) })
	select {
	case m.timer <- struct{}{}:
	default:
	}
}

// Answered reports a call to a rank that succeeded. While no rank is in doubt
// it costs one atomic load.
func (m *Members) Answered(rank fabric.Rank) {
	if m.doubted.Load() == 0 {
		return
	}
	m.apply(func(v *view) []Event { return v.answer(rank) })
}

// apply changes the view and queues what follows, so that the order of events
// is that of the changes.
func (m *Members) apply(change func(*view) []Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := change(m.view)
	m.doubted.Store(m.view.doubted())
	if len(events) > 0 {
		m.events.put(events...)
	}
}

// StartFor is how long a rank waits at most, with changes that it has heard of, for those that start with it:
// startPause after the last that came.
const (
	StartFor   = 20 * time.Second
	startPause = 5 * time.Second
)

// awaitStart waits until those that start together know of each other. What is made of a change
// takes each of them a while, and they may share CPUs: made for every few it would be made often.
func (m *Members) awaitStart() {
	began := time.Now()
	for last, known := began, 0; time.Since(last) < startPause && time.Since(began) < StartFor; {
		n := m.list.NumMembers()
		if n >= m.opt.Start {
			return
		}
		if n > known {
			last, known = time.Now(), n
		}
		select {
		case <-time.After(gather):
		case <-m.stopped.Done():
			return
		}
	}
}

func (m *Members) deliver() {
	defer close(m.drained)
	m.awaitStart()
	m.events.drain(func(events []Event) {
		for _, e := range events {
			m.log.Info("member "+e.Kind.String(), "member", uint32(e.Member.Rank), "incarnation", e.Member.Incarnation,
				"host", e.Member.Host, "addr", e.Member.Addr, "why", e.Why)
		}
		if m.opt.OnChange != nil {
			m.opt.OnChange(events)
		}
	})
}

// keepExpiring ends suspicions in time.
func (m *Members) keepExpiring() {
	for {
		m.apply(func(v *view) []Event { return v.expire(time.Now()) })
		m.mu.Lock()
		next, any := m.view.expiry()
		m.mu.Unlock()
		var due <-chan time.Time
		if any {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-m.timer:
		case <-m.stopped.Done():
			return
		}
	}
}

// Leave announces to the others that this rank goes, which they see as Left, and
// stops gossip's answers for it; Close must follow. ctx bounds the wait: an
// error means that some may see it as Died. Errors: ErrClosed, ctx's.
func (m *Members) Leave(ctx context.Context) error {
	m.ending.Lock()
	defer m.ending.Unlock()
	if m.stopped.Err() != nil {
		return fmt.Errorf("%w: %v can not leave", ErrClosed, m.self.rank)
	}
	m.leaving.Store(true)
	// The word that we leave needs some rounds to be everywhere before the
	// verdict: gossip's own messages do not distinguish leaving from dying.
	if err := m.list.UpdateNode(within(ctx, time.Second)); err == nil && m.list.NumMembers() > 1 {
		select {
		case <-time.After(min(5*m.opt.Timers.Gossip, within(ctx, 2*time.Second)/2)):
		case <-ctx.Done():
		}
	}
	if err := m.list.Leave(within(ctx, 5*time.Second)); err != nil {
		return errors.Join(fmt.Errorf("members: %v leaves before all were informed: %w", m.self.rank, err), ctx.Err())
	}
	return ctx.Err()
}

// within is the time left to ctx, at most most, and never 0, which is forever
// to memberlist.
func within(ctx context.Context, most time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end))
	}
	return max(most, time.Millisecond)
}

// Close ends gossip and waits, up to a few seconds, until OnChange has seen
// all events. Without Leave before it, the others take it for a death.
func (m *Members) Close() error {
	m.ending.Lock()
	defer m.ending.Unlock()
	if m.stopped.Err() != nil {
		return nil
	}
	m.stop()
	err := m.list.Shutdown()
	done := make(chan struct{})
	go func() {
		m.workers.Wait()
		m.events.close()
		<-m.drained
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		// An exchange that waits for a silent peer, or a slow OnChange: both
		// end by themselves.
	}
	if err != nil {
		return fmt.Errorf("members: gossip of %v does not end: %w", m.self.rank, err)
	}
	return nil
}
