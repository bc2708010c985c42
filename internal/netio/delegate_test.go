package netio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/fault"
)

// echo serves lines on a connection until it ends: its goroutine answers those that
// begin with "s", the poller those that begin with "b", each with itself. The poller panics
// at those that begin with "p".
type echo struct {
	*Conn
	briefs, slows atomic.Int64
	line          bool // in the middle of one

	times  int
	answer []byte // of the poller
}

func (e *echo) Answer(p []byte) bool {
	if p[0] == 'p' {
		var none *echo
		none.line = true
	}
	if p[0] != 'b' || bytes.IndexByte(p, '\n') != len(p)-1 {
		return false
	}
	e.briefs.Add(1)
	e.answer = bytes.Repeat(p, e.times)
	return true
}

func (e *echo) Send() error {
	p := e.answer
	if e.answer = nil; p == nil {
		return nil
	}
	_, err := Backlog{e.Conn}.Write(p)
	return err
}

func startEcho(t *testing.T, c *Conn) (e *echo, ended chan error) { return startEchoes(t, c, 1) }

// startEchoes has the poller repeat each line so many times.
func startEchoes(t *testing.T, c *Conn, times int) (e *echo, ended chan error) {
	e, ended = &echo{Conn: c}, make(chan error, 1)
	c.Idle = func() bool { return !e.line }
	e.times, c.Delegate = times, e
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- e.serve()
	}()
	t.Cleanup(func() {
		c.Shutdown(true)
		<-done
	})
	return e, ended
}

func (e *echo) serve() error {
	var held []byte
	p := make([]byte, 100)
	for {
		n, err := e.Read(p)
		if errors.Is(err, ErrQuiesce) {
			e.poller.Quiescing().Rest(e.Conn)
			continue
		}
		if err != nil {
			return err
		}
		held = append(held, p[:n]...)
		for {
			end := bytes.IndexByte(held, '\n')
			if end < 0 {
				break
			}
			e.slows.Add(1)
			e.run.goesOn = held[0] == 'b' // however long the run is
			if _, err := (Backlog{e.Conn}).Write(held[:end+1]); err != nil {
				return err
			}
			held = held[end+1:]
		}
		e.line = len(held) > 0
	}
}

// receive reads n bytes within some seconds.
func receive(t *testing.T, fd, n int) []byte {
	t.Helper()
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	p := make([]byte, n)
	for at := 0; at < n; {
		k, err := unix.Read(fd, p[at:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if k <= 0 {
			t.Fatalf("%d of %d bytes, %v", at, n, err)
		}
		at += k
	}
	return p
}

func TestDelegate(t *testing.T) {
	c, client := connPair(t, &spinner{})
	e, ended := startEcho(t, c)
	ask := func(line string) {
		t.Helper()
		send(t, client, []byte(line))
		if got := receive(t, client, len(line)); string(got) != line {
			t.Fatalf("%q is answered by %q", line, got)
		}
	}
	ask("brief, and read as usual: nobody knows yet\n")
	asked := int64(1)
	for ; e.briefs.Load() < 10; asked++ {
		time.Sleep(time.Millisecond) // a goroutine that finds the next when it looks does not delegate
		ask("brief\n")
	}
	if s := e.slows.Load(); s+e.briefs.Load() != asked {
		t.Errorf("of %d, %d were answered by the poller, %d by the goroutine", asked, e.briefs.Load(), s)
	}
	ask("slow\n") // wakes the goroutine, which then reads the next
	if s := e.slows.Load(); s == 0 || s+e.briefs.Load() != asked+1 {
		t.Errorf("%d were answered by the goroutine", s)
	}
	ask("brief\n")
	send(t, client, []byte("bri")) // one that is not whole
	time.Sleep(10 * time.Millisecond)
	send(t, client, []byte("ef\n"))
	if got := receive(t, client, 6); string(got) != "brief\n" {
		t.Errorf("%q", got)
	}

	q := c.poller.Quiesce()
	for !q.Rests(c) {
		q.Wake()
		time.Sleep(time.Millisecond)
	}
	before := e.briefs.Load()
	send(t, client, []byte("brief\n"))
	time.Sleep(10 * time.Millisecond)
	if e.briefs.Load() != before {
		t.Errorf("one was answered while connections rest for another program")
	}
	q.End()
	if got := receive(t, client, 6); string(got) != "brief\n" {
		t.Errorf("%q", got)
	}

	if err := unix.Shutdown(client, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Errorf("the end is %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a goroutine that has delegated does not see that its client is gone")
	}
}

// TestDelegateMixed: whoever answers, and however the bytes come, answers come once and in
// order.
func TestDelegateMixed(t *testing.T) {
	var all sync.WaitGroup
	for seed := range uint64(4) {
		c, client := connPair(t, &spinner{})
		e, _ := startEcho(t, c)
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, 0))
			var sent []byte
			for i := range 3000 {
				if random.IntN(20) == 0 {
					time.Sleep(500 * time.Microsecond) // for the goroutine to delegate
				}
				line := []byte("brief line\n")
				if random.IntN(10) == 0 {
					line = []byte("slow\n")
				}
				sent = append(sent, line...)
				if random.IntN(3) > 0 && i < 2999 {
					if random.IntN(4) > 0 && len(sent) == len(line) {
						send(t, client, sent)
						if got := receive(t, client, len(sent)); !bytes.Equal(got, sent) {
							t.Errorf("%q is answered by %q", sent, got)
							return
						}
						sent = sent[:0]
					}
					continue
				}
				for at := 0; at < len(sent); {
					n := min(1+random.IntN(20), len(sent)-at)
					send(t, client, sent[at:at+n])
					at += n
				}
				if got := receive(t, client, len(sent)); !bytes.Equal(got, sent) {
					t.Errorf("%q is answered by %q", sent, got)
					return
				}
				sent = sent[:0]
			}
			if e.briefs.Load() < 100 || e.slows.Load() < 100 {
				t.Errorf("%d were answered by the poller, %d by the goroutine", e.briefs.Load(), e.slows.Load())
			}
		})
	}
	all.Wait()
}

// pairOn is connPair with a poller of others.
func pairOn(t *testing.T, p *Poller) (*Conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.AdoptConn(fds[0], true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fds[1])
		c.Close()
	})
	return c, fds[1]
}

// TestDelegateFullSocket: a client that sends and does not read gets its answers in order when
// it does, and others are answered meanwhile.
func TestDelegateFullSocket(t *testing.T) {
	const times = 20_000
	c, client := connPair(t, &spinner{})
	e, _ := startEchoes(t, c, times)
	other, otherClient := pairOn(t, c.poller)
	startEcho(t, other)
	var want []byte
	for i := 0; e.briefs.Load() < 2 || e.slows.Load() < 3; i++ { // it reads on while answers are kept
		line := fmt.Appendf(nil, "brief %d\n", i)
		brief, slow := e.briefs.Load(), e.slows.Load()
		send(t, client, line)
		for e.briefs.Load() == brief && e.slows.Load() == slow {
			time.Sleep(100 * time.Microsecond)
		}
		if e.briefs.Load() > brief {
			line = bytes.Repeat(line, times)
		}
		want = append(want, line...)
	}
	line := []byte("brief\n")
	for range 100 {
		send(t, otherClient, line)
		receive(t, otherClient, len(line))
	}
	if got := receive(t, client, len(want)); !bytes.Equal(got, want) {
		t.Error("what comes is not what was answered")
	}
}

// TestDelegatePanics: a panic of Answer comes to who handles those of connections, with no lock
// of the poller held.
func TestDelegatePanics(t *testing.T) {
	c, client := connPair(t, &spinner{})
	handled := make(chan any, 1)
	fault.Handle(func(panicked any) {
		handled <- panicked
		runtime.Goexit()
	})
	defer fault.Handle(nil)
	e, _ := startEcho(t, c)
	for e.briefs.Load() == 0 {
		send(t, client, []byte("brief\n"))
		receive(t, client, 6)
	}
	send(t, client, []byte("panic\n"))
	var is runtime.Error
	if err, _ := (<-handled).(error); !errors.As(err, &is) {
		t.Errorf("%v is handled", err)
	}
	c.Shutdown(true)
	q := c.poller.Quiesce()
	q.Wake()
	q.End()
}

// TestEventOfAnotherConnection: an event that was fetched for a connection that is closed
// meanwhile does not count for the next one with its descriptor.
func TestEventOfAnotherConnection(t *testing.T) {
	c, _ := connPair(t, &spinner{})
	p := c.poller
	if _, err := p.arm(c, unix.EPOLLIN, nil); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	stale := unix.EpollEvent{Events: readEvents, Fd: int32(c.fd), Pad: p.mu.waiters[c.fd].number}
	p.mu.Unlock()
	p.forget(c)
	gone := false
	defer c.OnHangUp(func() { gone = true })()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eventLocked(stale); gone || len(p.mu.waiters[c.fd].woken) > 0 {
		t.Error("the next connection is taken for hung up")
	}
	stale.Pad = p.mu.waiters[c.fd].number
	if p.eventLocked(stale); !gone {
		t.Error("its own event does not count")
	}
}

// TestBriefRun: a goroutine delegates after a run, and after a longer one where that was of
// no use.
func TestBriefRun(t *testing.T) {
	var run briefRun
	of := func(n, polled int) (delegates int) {
		for range n {
			if run.add(true) {
				delegates++
			}
		}
		run.polled = polled
		if run.add(false) {
			t.Error("it delegates after a command that takes a wait")
		}
		return delegates
	}
	for i, c := range []struct{ n, polled, delegates int }{
		{leastRun - 1, 0, 0},
		{leastRun, worthRun - 1, 1},
		{leastRun, 0, 0}, // twice as many are needed
		{2 * leastRun, worthRun, 1},
		{leastRun, 0, 1},
	} {
		if got := of(c.n, c.polled); got != c.delegates {
			t.Errorf("run %d, of %d: it delegates %d times, want %d", i, c.n, got, c.delegates)
		}
	}
	for range 100 {
		of(mostRun, 0)
	}
	if n := of(mostRun+1, 0); n != 2 {
		t.Errorf("a long run delegates %d times", n)
	}
}

// TestBacklogWritev: what the socket has no room for is kept and goes out in order, whichever
// buffer it is in the middle of.
func TestBacklogWritev(t *testing.T) {
	c, client := connPair(t, &spinner{})
	var want []byte
	for i := range 2000 {
		bufs := [][]byte{randomBytes(uint64(i), 10), nil, randomBytes(uint64(i)+1, 7000), randomBytes(uint64(i), 2)}
		want = append(want, bytes.Join(bufs, nil)...)
		if err := (Backlog{c}).Writev(bufs); err != nil {
			t.Fatal(err)
		}
		clear(bufs[2]) // it was borrowed for the call
	}
	if c.BacklogLen() == 0 {
		t.Error("a socket takes 14 MB")
	}
	done := make(chan error, 1)
	go func() { done <- c.FlushBacklog() }()
	if got := receive(t, client, len(want)); !bytes.Equal(got, want) {
		t.Error("what comes is not what was written")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	_ = unix.Close(client)
	if err := (Backlog{c}).Writev([][]byte{want}); err == nil {
		t.Error("a client that is gone takes an answer")
	}
}
