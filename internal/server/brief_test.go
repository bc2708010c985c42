package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/dht/directory"
	"cascadekv/internal/handover"
)

// talk is a client that compares each answer with what it must be.
type talk struct {
	t  testing.TB
	r  *rig
	nc net.Conn
	rd *bufio.Reader
}

func (r *rig) talk(network string) *talk {
	nc, rd := r.raw(network)
	return &talk{t: r.t, r: r, nc: nc, rd: rd}
}

// ask sends words and reads as many bytes as the answer has.
func (x *talk) ask(answer string, words ...string) {
	x.t.Helper()
	x.exchange(command(words...), answer)
}

func (x *talk) exchange(sent, answer string) {
	x.t.Helper()
	if _, err := io.WriteString(x.nc, sent); err != nil {
		x.t.Fatal(err)
	}
	x.read(sent, answer)
}

func (x *talk) read(sent, answer string) {
	x.t.Helper()
	got := make([]byte, len(answer))
	if n, err := io.ReadFull(x.rd, got); err != nil || string(got) != answer {
		x.t.Fatalf("%.80q is answered by %.80q, %v; want %.80q", sent, got[:n], err, answer)
	}
}

// delegate sends PINGs until the poller answers, and returns how many more commands it has
// answered by then.
func (x *talk) delegate() uint64 {
	x.t.Helper()
	from := x.r.srv.counters.polled.Load()
	for i := 1; x.r.srv.counters.polled.Load() == from; i++ {
		if i%16 == 0 {
			time.Sleep(time.Millisecond) // a goroutine that finds the next when it looks does not delegate
		}
		x.ask("+PONG\r\n", "PING")
	}
	return x.r.srv.counters.polled.Load()
}

// polled fails unless the poller answered want commands in do.
func (x *talk) polled(what string, want uint64, do func()) {
	x.t.Helper()
	from := x.delegate()
	do()
	if got := x.r.srv.counters.polled.Load() - from; got != want {
		x.t.Errorf("%s: the poller answered %d commands, want %d", what, got, want)
	}
}

// TestBrief: what is answered without the connection's goroutine, and what is not, as a
// client sees it: no difference.
func TestBrief(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		r := newRig(t, 16<<20)
		x := r.talk(network)
		x.ask("+OK\r\n", "SET", "a", "1")
		x.ask("+OK\r\n", "SET", "m@w@0@kv_bytes", "bytes")
		x.ask("+OK\r\n", "SET", "m@w@0@metadata", "meta")
		x.ask("+OK\r\n", "SET", "alonemetadata", "meta") // bound to bytes that are not there
		before := r.store.Stats()
		x.polled("EXISTS", 2, func() {
			x.ask(":1\r\n", "EXISTS", "a")
			x.ask(":2\r\n", "exists", "a", "none", "a")
		})
		after := r.store.Stats()
		if l, f := after.Lookups-before.Lookups, after.Found-before.Found; l != 4 || f != 3 || after.Leases != before.Leases+1 {
			t.Errorf("%d look-ups, %d found, %d leases", l, f, after.Leases)
		}
		x.polled("a pair", 1, func() { x.ask(":1\r\n", "EXISTS", "m@w@0@metadata") })
		if n := r.store.Stats().Leases; n != after.Leases+2 {
			t.Errorf("EXISTS of metadata leases %d names, want both halves", n-after.Leases)
		}
		x.polled("metadata without bytes", 1, func() { x.ask(":0\r\n", "EXISTS", "alonemetadata") })
		x.polled("PING", 3, func() {
			x.ask("+PONG\r\n", "PING")
			x.ask("$3\r\nabc\r\n", "PING", "abc")
			x.exchange("PING 'a b'\r\n", "$3\r\na b\r\n")
		})
		if network == "unix" {
			x.polled("CONTAINS", 1, func() { x.ask("$3\r\n\x01\x00\x01\r\n", "CASCADE.CONTAINS", "redis/0", "a", "none", "a") })
		} else {
			x.polled("CONTAINS of others", 0, func() { x.ask("-"+errForeign+"\r\n", "CASCADE.CONTAINS", "redis/0", "a") })
		}
		many := append([]string{"EXISTS"}, strings.Split(strings.Repeat("a ", briefKeys)+"a", " ")...)
		x.polled("many keys", 0, func() { x.ask(fmt.Sprintf(":%d\r\n", briefKeys+1), many...) })
		x.polled("as many as may be", 1, func() { x.ask(fmt.Sprintf(":%d\r\n", briefKeys), many[:briefKeys+1]...) })
		x.polled("bad arguments", 0, func() { x.ask("-ERR wrong number of arguments for 'exists' command\r\n", "EXISTS") })
		x.polled("bad arguments", 0, func() { x.ask("-ERR wrong number of arguments for 'ping' command\r\n", "PING", "a", "b") })
		x.polled("a pipeline", 0, func() {
			x.exchange(command("EXISTS", "a")+command("PING")+command("EXISTS", "none"), ":1\r\n+PONG\r\n:0\r\n")
		})
		x.polled("a long command", 0, func() {
			long := strings.Repeat("x", 30_000)
			x.ask("$30000\r\n"+long+"\r\n", "PING", long)
		})
		x.polled("other commands", 0, func() { x.ask("+OK\r\n", "SELECT", "3") })
		x.polled("another database", 1, func() { x.ask(":0\r\n", "EXISTS", "a") })
		x.ask("+RESET\r\n", "RESET")
		x.polled("the first database", 1, func() { x.ask(":1\r\n", "EXISTS", "a") })
		sent := command("EXISTS", "a")
		for cut := 1; cut < len(sent); cut += 5 {
			x.delegate()
			if _, err := io.WriteString(x.nc, sent[:cut]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			x.exchange(sent[cut:], ":1\r\n")
		}
		x.delegate()
		x.ask("-ERR unknown command 'NONE'; docs/protocol.md lists what a rank serves\r\n", "NONE")
		_, _ = io.WriteString(x.nc, "HELLO 3\r\n")
		for range 7*2 + 7 - 1 { // seven pairs, of which three values take one line and four two
			if line, err := x.rd.ReadString('\n'); err != nil {
				t.Fatal(line, err)
			}
		}
		for x.rd.Buffered() > 0 {
			_, _ = x.rd.ReadByte()
		}
		x.polled("RESP3", 2, func() {
			x.ask(":1\r\n", "EXISTS", "a")
			x.ask("$1\r\nx\r\n", "PING", "x")
		})
		if s := r.srv.Snapshot(); s.Polled == 0 || s.Polled >= s.Commands {
			t.Errorf("%d of %d commands were answered by the poller", s.Polled, s.Commands)
		}
	}
}

// TestBriefValues: which SETs and GETs are answered without the goroutine, and that what they
// count and promise is the same.
func TestBriefValues(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		r := newRig(t, 16<<20)
		x := r.talk(network)
		small, large := strings.Repeat("s", briefBytes), strings.Repeat("l", briefBytes+1)
		bulk := func(v string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v) }
		x.ask("+OK\r\n", "SET", "first", strings.Repeat("f", 4<<20)) // memory is there
		before := r.store.Stats()
		x.polled("small values", 5, func() {
			x.ask("+OK\r\n", "SET", "small", small)
			x.ask(bulk(small), "GET", "small")
			x.ask("+OK\r\n", "set", "small", "x", "EX", "100")
			x.ask(bulk("x"), "get", "small")
			x.exchange("SET line 'a b'\r\n", "+OK\r\n")
		})
		after := r.store.Stats()
		if after.Puts-before.Puts != 3 || after.Hits-before.Hits != 2 || after.Misses != before.Misses || after.Leases-before.Leases != 1 {
			t.Errorf("%d puts, %d hits, %d misses, %d leases", after.Puts-before.Puts, after.Hits-before.Hits, after.Misses-before.Misses, after.Leases-before.Leases)
		}
		x.polled("a pair", 3, func() {
			x.ask("+OK\r\n", "SET", "m@w@0@kv_bytes", "bytes")
			x.ask("+OK\r\n", "SET", "m@w@0@metadata", "meta")
			x.ask(bulk("meta"), "GET", "m@w@0@metadata")
		})
		if n := r.store.Stats().Leases - after.Leases; n != 2 {
			t.Errorf("GET of metadata leases %d names, want both halves", n)
		}
		x.polled("conditions", 3, func() {
			x.ask("$-1\r\n", "SET", "small", "y", "NX")
			x.ask("+OK\r\n", "SET", "small", "y", "XX", "KEEPTTL")
			x.ask(bulk("y"), "GET", "small")
		})
		x.ask(":100\r\n", "TTL", "small")
		x.polled("larger values", 0, func() { x.ask("+OK\r\n", "SET", "large", large) })
		x.polled("larger values", 0, func() { x.ask(bulk(large), "GET", "large") })
		x.polled("a miss", 0, func() { x.ask("$-1\r\n", "GET", "none") })
		x.polled("a bad option", 0, func() { x.ask("-ERR syntax error\r\n", "SET", "small", "y", "ZZ") })
		x.polled("a bad key", 0, func() {
			x.ask("-ERR "+cascade.ErrBadEntry.Error(), "SET", "", "y")
		})
		eventually(t, "views are given back", func() bool { return r.store.Stats().Views == 0 })
	}
}

// TestBriefGuess: connections whose commands are brief now and then only are not delegated.
func TestBriefGuess(t *testing.T) {
	r := newRig(t, 16<<20)
	x := r.talk("unix")
	x.ask("+OK\r\n", "SET", "a", "1")
	for run := range 100 {
		for range run % 2 {
			x.ask(":1\r\n", "EXISTS", "a")
		}
		x.ask("$-1\r\n", "GET", "none")
		for range 5 {
			x.exchange(strings.Repeat(command("PING"), 5), strings.Repeat("+PONG\r\n", 5))
		}
	}
	if n := r.srv.counters.polled.Load(); n != 0 {
		t.Errorf("the poller answered %d commands", n)
	}
}

// slowPeers are other ranks that do not answer until they are let.
type slowPeers struct {
	cascade.Peers // nil
	asked         atomic.Int64
	answer        chan struct{}
}

func (p *slowPeers) Publish(...directory.Statement)                       {}
func (p *slowPeers) Settled(context.Context) bool                         { return true }
func (p *slowPeers) Invalidate(directory.Statement)                       {}
func (p *slowPeers) Delete(context.Context, string, string, uint64) error { return nil }

func (p *slowPeers) Locate(_ context.Context, _ string, keys []string) [][]directory.Statement {
	p.asked.Add(1)
	<-p.answer
	return make([][]directory.Statement, len(keys))
}

// TestBriefElsewhere: the poller does not wait for other ranks. What only they can know is
// asked by the connection's goroutine, while others are answered.
func TestBriefElsewhere(t *testing.T) {
	r := newRig(t, 16<<20)
	p := &slowPeers{answer: make(chan struct{})}
	r.store.Join(p)
	x, other := r.talk("tcp"), r.talk("unix")
	x.ask("+OK\r\n", "SET", "here", "1")
	x.ask("+OK\r\n", "SET", "alonemetadata", "1")
	x.delegate()
	x.polled("a key that is here", 1, func() { x.ask(":1\r\n", "EXISTS", "here") })
	for i, c := range []struct {
		words  []string
		answer string
	}{
		{[]string{"EXISTS", "elsewhere"}, ":0\r\n"},
		{[]string{"EXISTS", "here", "elsewhere"}, ":1\r\n"},
		{[]string{"EXISTS", "alonemetadata"}, ":0\r\n"},
		{[]string{"CASCADE.CONTAINS", "redis/0", "here", "elsewhere"}, "$2\r\n\x01\x00\r\n"},
	} {
		if i == 3 {
			x = r.talk("unix")
		}
		x.delegate()
		from, looked := p.asked.Load(), r.store.Stats().Lookups
		if _, err := io.WriteString(x.nc, command(c.words...)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the others are asked", func() bool { return p.asked.Load() > from })
		other.polled("another client", 2, func() {
			other.ask(":1\r\n", "EXISTS", "here")
			other.ask("$1\r\n\x01\r\n", "CASCADE.CONTAINS", "redis/0", "here")
		})
		done := make(chan struct{})
		var answering sync.WaitGroup
		answering.Go(func() {
			for {
				select {
				case p.answer <- struct{}{}:
				case <-done:
					return
				}
			}
		})
		x.read(c.words[0], c.answer)
		close(done)
		answering.Wait()
		want := uint64(len(c.words) - 1 + 2)
		if c.words[0] == "CASCADE.CONTAINS" {
			want--
		}
		if i == 2 {
			want++ // the bytes of the pair
		}
		if n := r.store.Stats().Lookups - looked; n != want {
			t.Errorf("%v: %d look-ups are counted, want %d", c.words, n, want)
		}
	}
	close(p.answer)
}

// TestBriefLogin: a connection that is delegated is bound to its password as any other,
// and those of strangers are not delegated.
func TestBriefLogin(t *testing.T) {
	r := newRig(t, 16<<20, func(o *Options) { o.Limits.Password = "one" })
	stranger, x := r.talk("tcp"), r.talk("tcp")
	for range 10 {
		stranger.ask("-NOAUTH Authentication required.\r\n", "PING")
	}
	if n := r.srv.counters.polled.Load(); n != 0 {
		t.Errorf("the poller answered %d commands of a stranger", n)
	}
	x.ask("+OK\r\n", "AUTH", "one")
	x.delegate()
	l := *r.srv.limits.Load()
	l.Password = "two"
	r.srv.SetLimits(l)
	ends(t, "the password is another one", x.nc)
	y := r.talk("unix")
	y.ask("+OK\r\n", "AUTH", "two")
	y.delegate()
	y.ask("+RESET\r\n", "RESET")
	y.ask("-NOAUTH Authentication required.\r\n", "PING")
	y.ask("-NOAUTH Authentication required.\r\n", "EXISTS", "a")
}

// TestBriefEnds: a connection that is delegated ends with its client, with the server, and with
// what it was promised.
func TestBriefEnds(t *testing.T) {
	r := newRig(t, 16<<20)
	for _, network := range []string{"unix", "tcp"} {
		for name, end := range map[string]func(nc net.Conn){
			"closed":      func(nc net.Conn) { nc.Close() },
			"half closed": func(nc net.Conn) { _ = nc.(interface{ CloseWrite() error }).CloseWrite() },
			"reset": func(nc net.Conn) {
				if c, ok := nc.(*net.TCPConn); ok {
					_ = c.SetLinger(0)
				}
				nc.Close()
			},
			"with a command": func(nc net.Conn) {
				_, _ = io.WriteString(nc, command("EXISTS", "a"))
				nc.Close()
			},
		} {
			x := r.talk(network)
			x.ask("+OK\r\n", "SET", "a", "1")
			x.delegate()
			x.ask(":1\r\n", "EXISTS", "a")
			end(x.nc)
			eventually(t, network+" "+name, func() bool { return r.srv.connections() == 0 && r.store.Stats().Leases == 0 })
		}
	}
	x := r.talk("tcp")
	x.delegate()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	ends(t, "the server ends", x.nc)
}

// TestBriefDescriptors: descriptors that come with a brief command are closed.
func TestBriefDescriptors(t *testing.T) {
	r := newRig(t, 16<<20)
	x := r.talk("unix")
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	x.polled("with a descriptor", 1, func() {
		if _, _, err := x.nc.(*net.UnixConn).WriteMsgUnix([]byte(command("PING")), unix.UnixRights(pipe[1]), nil); err != nil {
			t.Fatal(err)
		}
		x.read("PING", "+PONG\r\n")
	})
	_ = unix.Close(pipe[1])
	p := []unix.PollFd{{Fd: int32(pipe[0])}}
	if _, err := unix.Poll(p, 0); err != nil || p[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("somebody still has the other end of the pipe: %v, %v", p[0].Revents, err)
	}
}

// TestBriefHandOver: clients whose commands are brief and not, whole and in parts, get
// each answer once and in order, while connections are brought to rest again and again.
func TestBriefHandOver(t *testing.T) {
	r := newRig(t, 16<<20)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var turns atomic.Int64
	for i := range 4 {
		x := r.talk([]string{"unix", "tcp"}[i%2])
		x.ask("+PONG\r\n", "PING")
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			key, there := fmt.Sprint("k", i), false
			for {
				select {
				case <-stop:
					return
				default:
				}
				time.Sleep(time.Duration(rng.IntN(2)) * time.Millisecond) // for the goroutine to delegate
				for range rng.IntN(100) {
					x.ask(map[bool]string{true: ":1\r\n", false: ":0\r\n"}[there], "EXISTS", key)
				}
				var sent, answer strings.Builder
				run := rng.IntN(8) == 0
				for range 1 + rng.IntN(6) {
					if run {
						sent.WriteString(command("SET", key, "v"))
						answer.WriteString("+OK\r\n")
						there = true
					} else if rng.IntN(20) == 0 {
						sent.WriteString(command("DEL", key))
						answer.WriteString(map[bool]string{true: ":1\r\n", false: ":0\r\n"}[there])
						there = false
					} else {
						sent.WriteString(command("EXISTS", key))
						answer.WriteString(map[bool]string{true: ":1\r\n", false: ":0\r\n"}[there])
					}
					if rng.IntN(3) > 0 { // one at a time
						x.exchange(sent.String(), answer.String())
						sent.Reset()
						answer.Reset()
					}
				}
				for p := sent.String(); len(p) > 0; {
					n := min(len(p), 1+rng.IntN(40))
					if _, err := io.WriteString(x.nc, p[:n]); err != nil {
						x.t.Error(err)
						return
					}
					p = p[n:]
				}
				x.read(sent.String(), answer.String())
				turns.Add(1)
			}
		})
	}
	done := turns.Load()
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := r.srv.HandOver(ctx, 0, func(st *handover.State) error {
			if len(st.Conns) != 4 {
				t.Errorf("%d connections are handed over", len(st.Conns))
			}
			return errStays
		})
		cancel()
		if !errors.Is(err, errStays) {
			t.Fatal(err)
		}
		eventually(t, "clients go on", func() bool { return turns.Load() > done+20 || t.Failed() })
		done = turns.Load()
	}
	close(stop)
	clients.Wait()
	if n, all := r.srv.counters.polled.Load(), r.srv.counters.commands.Load(); n < 100 || all-n < 100 {
		t.Errorf("the poller answered %d of %d commands", n, all)
	}
}

// TestBriefTakenOver: another program goes on with a connection that was delegated, and with what
// its client sends meanwhile.
func TestBriefTakenOver(t *testing.T) {
	r := newRig(t, 16<<20)
	x := r.talk("unix")
	x.ask("+OK\r\n", "SET", "a", "1")
	x.delegate()
	x.ask(":1\r\n", "EXISTS", "a")
	err := r.srv.HandOver(t.Context(), 0, func(st *handover.State) error {
		if _, err := io.WriteString(x.nc, command("EXISTS", "a")); err != nil {
			t.Fatal(err)
		}
		o := r.srv.opt
		o.Socket, o.Listen, o.Admin, o.Inherited = "", "", "", dup(t, st)
		second, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { served <- second.Serve(ctx) }()
		x.read("EXISTS", ":1\r\n")
		x.r = &rig{t: t, srv: second}
		x.delegate()
		x.ask(":0\r\n", "EXISTS", "b")
		x.nc.Close()
		stop, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		err = second.Shutdown(stop)
		cancel()
		if err := errors.Join(err, <-served); err != nil {
			t.Error(err)
		}
		return errStays
	})
	if !errors.Is(err, errStays) {
		t.Errorf("HandOver: %v", err)
	}
}
