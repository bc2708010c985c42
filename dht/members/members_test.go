package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/testlog"

	"github.com/hashicorp/memberlist"
)

// fast are timers for a handful of ranks on loopback.
var fast = Timers{
	Probe: 200 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond, Gossip: 30 * time.Millisecond,
	PushPull: 2 * time.Second, Dial: time.Second,
	RejoinMin: 100 * time.Millisecond, RejoinMax: 500 * time.Millisecond, SuspectFor: time.Minute,
}

// rank is one Members and what it was told.
type rank struct {
	*Members
	log *testlog.Log

	mu     sync.Mutex
	events []Event
}

func (r *rank) told(kind Kind, of fabric.Rank) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind && e.Member.Rank == of {
			return true
		}
	}
	return false
}

// sees reports whether another life of a rank is in this state here.
func (r *rank) sees(of fabric.Rank, incarnation uint64, state fabric.State) bool {
	for _, m := range r.List() {
		if m.Rank == of {
			return m.Incarnation == incarnation && m.State == state
		}
	}
	return false
}

// options are those of one rank of a test; change them before start.
func options(number fabric.Rank, incarnation uint64, seeds ...string) Options {
	return Options{
		Self: Member{Rank: number, Incarnation: incarnation, Addr: fmt.Sprint("fabric-", uint32(number)), Host: "host"},
		Bind: "127.0.0.1:0", Job: "job", Secret: []byte("sixteen bytes and more"), Placement: 1, Seeds: seeds, Timers: fast,
	}
}

func start(t *testing.T, opt Options) *rank {
	t.Helper()
	r := &rank{log: &testlog.Log{}}
	opt.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opt.OnChange = func(events []Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, events...)
	}
	m, err := Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	r.Members = m
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			text := r.log.String()
			t.Logf("log of rank %d:\n%s", opt.Self.Rank, text[max(0, len(text)-4000):])
		}
	})
	return r
}

// eventually waits, generously: machines are slow, and gossip is patient.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// allSee waits until all have each other.
func allSee(t *testing.T, all ...*rank) {
	t.Helper()
	for _, r := range all {
		for _, other := range all {
			eventually(t, fmt.Sprintf("%v sees %v", r.self.rank, other.self.rank), func() bool {
				return r.sees(other.self.rank, other.self.incarnation, fabric.Alive)
			})
		}
	}
}

// wire is a real transport that can be cut between groups of ranks.
type wire struct {
	*memberlist.NetTransport
	net *network
	own string
}

// network knows which group each address is in; ranks of different groups do
// not hear each other.
type network struct {
	mu    sync.Mutex
	group map[string]int
}

var errCut = errors.New("the test has cut this connection")

func (n *network) cut(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.group[a] != n.group[b]
}

func (n *network) put(group int, all ...*rank) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range all {
		n.group[r.Addr()] = group
	}
}

func (n *network) transport(t *testing.T) *wire {
	t.Helper()
	for range 10 {
		real, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{"127.0.0.1"}, Logger: log.New(io.Discard, "", 0),
		})
		if err == nil {
			return &wire{real, n, fmt.Sprint("127.0.0.1:", real.GetAutoBindPort())}
		}
	}
	t.Fatal("no free port for both TCP and UDP")
	return nil
}

func (w *wire) WriteTo(b []byte, addr string) (time.Time, error) {
	return w.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (w *wire) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	if w.net.cut(w.own, addr.Addr) {
		return time.Now(), nil // lost
	}
	return w.NetTransport.WriteToAddress(b, addr)
}

func (w *wire) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return w.DialAddressTimeout(memberlist.Address{Addr: addr}, d)
}

func (w *wire) DialAddressTimeout(addr memberlist.Address, d time.Duration) (net.Conn, error) {
	if w.net.cut(w.own, addr.Addr) {
		return nil, errCut
	}
	return w.NetTransport.DialAddressTimeout(addr, d)
}

// TestPartition cuts four ranks into halves until each half has given up the
// other, and heals the cut: all find each other again.
func TestPartition(t *testing.T) {
	t.Parallel()
	network := &network{group: map[string]int{}}
	var all []*rank
	for i := range 4 {
		opt := options(fabric.Rank(i), 1)
		w := network.transport(t)
		opt.transport, opt.Bind = w, w.own
		if i > 0 {
			opt.Seeds = []string{all[0].Addr()}
		}
		all = append(all, start(t, opt))
	}
	allSee(t, all...)
	network.put(1, all[2], all[3])
	for i, r := range all {
		for k := range all {
			if i/2 != k/2 {
				eventually(t, fmt.Sprintf("rank %d gives up rank %d", i, k), func() bool { return r.sees(fabric.Rank(k), 1, fabric.Gone) })
			}
		}
	}
	network.put(0, all[2], all[3])
	allSee(t, all...)
}

// TestCrashAndRestart: a death is seen by all, and the next life of the rank
// takes its seat.
func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	a := start(t, options(0, 1))
	b := start(t, options(1, 1, a.Addr()))
	c := start(t, options(2, 7, b.Addr()))
	allSee(t, a, b, c)
	for _, m := range b.List() {
		if m.Rank == 2 && (m.Addr != "fabric-2" || m.Host != "host" || m.Gossip != c.Addr()) {
			t.Errorf("rank 2 is known as %+v", m)
		}
	}
	c.Close()
	for _, r := range []*rank{a, b} {
		eventually(t, "the death is seen", func() bool { return r.sees(2, 7, fabric.Gone) && r.told(Died, 2) })
	}
	again := start(t, options(2, 8, a.Addr()))
	allSee(t, a, b, again)
}

// TestLeave: who says goodbye has left, not died.
func TestLeave(t *testing.T) {
	t.Parallel()
	a := start(t, options(0, 1))
	b := start(t, options(1, 1, a.Addr()))
	allSee(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := b.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leave is seen", func() bool { return a.told(Left, 1) })
	if a.told(Died, 1) || !a.List()[1].Left {
		t.Errorf("known as %+v", a.List()[1])
	}
	b.Close()
	if err := b.Leave(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("leave after close: %v", err)
	}
}

// TestReplaced: of two live processes with one rank, the older learns that it
// is not the rank any more.
func TestReplaced(t *testing.T) {
	t.Parallel()
	a := start(t, options(0, 1))
	old := start(t, options(1, 1, a.Addr()))
	allSee(t, a, old)
	young := start(t, options(1, 2, a.Addr()))
	eventually(t, "the old one is told", func() bool { return old.told(Replaced, 1) })
	allSee(t, a, young)
	if young.told(Replaced, 1) {
		t.Error("the young one is told that it is replaced")
	}
	old.Close()
	// The verdict on the old one is not one on the rank.
	third := start(t, options(2, 1, a.Addr()))
	allSee(t, a, young, third)
	if a.told(Died, 1) {
		t.Error("rank 1 is taken for dead")
	}
}

// TestRefused: strangers do not come in, and the log says why.
func TestRefused(t *testing.T) {
	t.Parallel()
	a := start(t, options(0, 1))
	friend := start(t, options(4, 1, a.Addr()))
	allSee(t, a, friend)
	for i, c := range []struct {
		change func(*Options)
		says   string
	}{
		{func(o *Options) { o.Secret = []byte("another sixteen bytes") }, "can not join"},
		{func(o *Options) { o.Job = "another job" }, "can not join"},
		{func(o *Options) { o.Placement = 2 }, "it has placement version 1, this rank 2"},
	} {
		opt := options(fabric.Rank(i+1), 1, a.Addr())
		c.change(&opt)
		stranger := start(t, opt)
		eventually(t, c.says, func() bool { return stranger.log.Has(c.says) })
		time.Sleep(5 * fast.Gossip)
		if n := len(stranger.List()); n != 1 {
			t.Errorf("%s: it knows %d ranks", c.says, n)
		}
		if n := len(a.List()); n != 2 {
			t.Errorf("%s: %d ranks are known", c.says, n)
		}
	}
	if !a.log.Has("member refused") || !a.log.Has("it has placement version 2, this rank 1") {
		t.Error("the reason of the refusal is not logged")
	}
}

// TestSeedsLate: a rank starts alone, and finds its seed when that starts.
func TestSeedsLate(t *testing.T) {
	t.Parallel()
	free := start(t, options(9, 1))
	later := free.Addr()
	free.Close()
	a := start(t, options(0, 1, "no port", later))
	eventually(t, "it keeps trying", func() bool { return a.log.Has("can not join; trying on") && a.log.Has("seed has no address") })
	opt := options(1, 1)
	opt.Bind = later
	b := start(t, opt)
	allSee(t, a, b)
	c := start(t, options(2, 1))
	c.AddSeeds(a.Addr())
	allSee(t, a, b, c)
}

// TestOwnDeadlines: failed calls make a suspicion that gossip knows nothing
// of, and an answer or time ends it.
func TestOwnDeadlines(t *testing.T) {
	t.Parallel()
	opt := options(0, 1)
	opt.Timers.SuspectFor = 500 * time.Millisecond
	a := start(t, opt)
	b := start(t, options(1, 1, a.Addr()))
	allSee(t, a, b)
	a.Suspect(1, fabric.ErrUnreachable)
	a.Suspect(1, fabric.ErrUnreachable)
	eventually(t, "it is suspected", func() bool { return a.told(Suspected, 1) })
	eventually(t, "the suspicion expires", func() bool { return a.told(Restored, 1) })
	b.Suspect(0, nil)
	b.Suspect(0, nil)
	if !b.sees(0, 1, fabric.Suspect) || b.doubted.Load() != 1 {
		t.Error("two failed calls make no suspicion")
	}
	b.Answered(0)
	if !b.sees(0, 1, fabric.Alive) || b.doubted.Load() != 0 {
		t.Error("an answer does not end the suspicion")
	}
}

// TestSlowReader: OnChange may take its time, and still hears all in order, what came
// meanwhile together, while calls report from many goroutines.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var mu sync.Mutex
	final := map[fabric.Rank]Member{}
	opt := options(0, 1)
	calls := 0
	opt.OnChange = func(events []Event) {
		<-release
		mu.Lock()
		defer mu.Unlock()
		calls++
		for _, e := range events {
			final[e.Member.Rank] = e.Member
		}
	}
	m, err := Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	a := &rank{Members: m, log: &testlog.Log{}}
	b := start(t, options(1, 1, a.Addr()))
	allSee(t, a, b)
	var reports sync.WaitGroup
	for range 4 {
		reports.Go(func() {
			for range 200 {
				a.Suspect(1, fabric.ErrUnreachable)
				a.Answered(1)
				a.List()
			}
		})
	}
	reports.Wait()
	close(release)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if calls > 10 { // the first alone, the hundreds that waited for it, and what the end brought
		t.Errorf("%d calls", calls)
	}
	if held := a.List()[1]; final[1] != held {
		t.Errorf("told %+v at last, is %+v", final[1], held)
	}
}

func TestOptions(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"short secret": func(o *Options) { o.Secret = o.Secret[:15] },
		"no job":       func(o *Options) { o.Job = "" },
		"no port":      func(o *Options) { o.Bind = "127.0.0.1" },
		"bad port":     func(o *Options) { o.Bind = "127.0.0.1:70000" },
		"advertise":    func(o *Options) { o.Advertise = "x" },
		"rank":         func(o *Options) { o.Self.Rank = maxRank },
		"host":         func(o *Options) { o.Self.Host = "a\nb" },
	} {
		opt := options(0, 1)
		change(&opt)
		if _, err := Start(t.Context(), opt); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", what, err)
		}
	}
	one, err := key([]byte("secret"), "a")
	other, err2 := key([]byte("secret"), "b")
	if err != nil || err2 != nil || len(one) != 32 || bytes.Equal(one, other) {
		t.Errorf("keys of two jobs: %x, %x", one, other)
	}
}

func TestLog(t *testing.T) {
	out := &testlog.Log{}
	w := newLogWriter(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	for _, line := range []string{
		"[DEBUG] memberlist: quiet\n", "[WARN] memberlist: ignoring alive message for x\n",
		"[INFO] memberlist: one\n", "[WARN] memberlist: two\n", "[ERR] memberlist: three\n", "Err: four\n",
	} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	for _, want := range []string{`INFO msg="gossip: one"`, `WARN msg="gossip: two"`, `ERROR msg="gossip: three"`, `ERROR msg="gossip: Err: four"`} {
		if !out.Has(want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
	if out.Has("quiet") || out.Has("ignoring") {
		t.Errorf("too much: %s", out.String())
	}
}
