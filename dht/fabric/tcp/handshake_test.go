package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// soon is a context of operations that end long before it.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   error
		text   string
	}{
		"secret":    {func(o *Options) { o.Secret = []byte("quite another secret") }, fabric.ErrRefused, "secret of job"},
		"job":       {func(o *Options) { o.Job = "other" }, fabric.ErrRefused, `job "other"`},
		"placement": {func(o *Options) { o.Placement = 77 }, fabric.ErrRefused, "version 77"},
		"rank":      {func(o *Options) { o.Self = 5 }, fabric.ErrUnreachable, "belongs to rank 5"},
		"life":      {func(o *Options) { o.Incarnation = 8 }, fabric.ErrUnreachable, "incarnation 8"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(1, 1)
			c.change(&o)
			var told observer
			o.Observe = told.observe
			other, _ := serve(t, o)
			f := start(t, options(0, 1))
			f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: other.Addr()})
			_, err := f.Call(soon(t), 1, []byte("e"))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("a call was answered %v, want %v with %q", err, c.want, c.text)
			}
			if err := f.Read(soon(t), 1, fabric.Source{}, nil); !errors.Is(err, c.want) {
				t.Errorf("a read was answered %v, want %v", err, c.want)
			}
			told.wait(t, "")
			if told.contains(secret) || strings.Contains(fmt.Sprintf("%v %v %+v %#v", err, f.identity, f.identity, f.identity), secret) {
				t.Error("the secret was told")
			}
		})
	}
}

// observer keeps what a fabric says of others.
type observer struct {
	mu   sync.Mutex
	told []error
}

func (o *observer) observe(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, err)
}

func (o *observer) contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, err := range o.told {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// wait waits until an error with the text was told.
func (o *observer) wait(t *testing.T, text string) {
	t.Helper()
	until(t, fmt.Sprintf("an error with %q is told", text), func() bool { return o.contains(text) })
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// peer listens with a handshake of its own, whatever comes after it.
func peer(t *testing.T, behave func(conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(t.Context(), func() { conn.Close() })()
				behave(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func TestOtherVersion(t *testing.T) {
	addr := peer(t, func(conn net.Conn) {
		b := []byte(magic + "\x09\x00 and what follows is unknown")
		_, _ = conn.Write(b)
		_, _ = io.Copy(io.Discard, conn)
	})
	f := start(t, options(0, 1))
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: addr})
	_, err := f.Call(soon(t), 1, nil)
	if !errors.Is(err, fabric.ErrRefused) || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("a call of a rank of version 9 was answered %v", err)
	}

	o := options(1, 1)
	o.OpenTimeout = 300 * time.Millisecond // it hears strangers out
	var told observer
	o.Observe = told.observe
	conn, err := net.Dial("tcp", start(t, o).Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(magic + "\x09\x00 and what follows is unknown")); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(conn, 10))
	if want := magic + "\x02\x00"; err != nil || string(got) != want {
		t.Errorf("an opener of version 9 was answered %q, error %v, want %q", got, err, want)
	}
	told.wait(t, "version 9")
}

// An accepter that knows no secret sends back what it hears.
func TestReflection(t *testing.T) {
	addr := peer(t, func(conn net.Conn) {
		var b [greetingSize]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return
		}
		_, _ = conn.Write(append(b[:], make([]byte, codeSize)...))
		_, _ = io.Copy(io.Discard, conn)
	})
	f := start(t, options(0, 1))
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: addr})
	if _, err := f.Call(soon(t), 1, nil); !errors.Is(err, fabric.ErrRefused) {
		t.Errorf("a mirror was answered %v", err)
	}
}

// An opener that knows no secret sends back the accepter's code, or what
// another opener once sent.
func TestReflectedAndReplayedProof(t *testing.T) {
	o := options(1, 1)
	o.OpenTimeout = 300 * time.Millisecond // it hears strangers out
	var told observer
	o.Observe = told.observe
	target, handler := serve(t, o)

	// A true handshake, written down.
	var heard bytes.Buffer
	conn := dial(t, target)
	me := golden()
	*me = identity{self: 0, incarnation: 1, placement: 1, job: "tests", key: target.identity.key}
	if err := me.open(t.Context(), &tap{conn, &heard}, forCalls, 1, 1); err != nil {
		t.Fatal(err)
	}
	call := header{kind: kindCall, id: 1, number: 1e10}.frame([]byte("e"))
	for name, proof := range map[string]func(code []byte) []byte{
		"reflected": func(code []byte) []byte { return code },
		"replayed":  func([]byte) []byte { return heard.Bytes()[greetingSize:] },
	} {
		conn := dial(t, target)
		if _, err := conn.Write(heard.Bytes()[:greetingSize]); err != nil {
			t.Fatal(err)
		}
		var answer [greetingSize + codeSize]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(append(bytes.Clone(proof(answer[greetingSize:])), call...))
		if rest, _ := io.ReadAll(conn); len(rest) > 0 {
			t.Errorf("%s: it was answered %x", name, rest)
		}
	}
	told.wait(t, "does not know the secret")
	if n := handler.Stats().Calls; n != 0 {
		t.Errorf("the handler was called %d times", n)
	}
}

// tap writes down what is written.
type tap struct {
	net.Conn
	to io.Writer
}

func (p *tap) Write(b []byte) (int, error) {
	_, _ = p.to.Write(b)
	return p.Conn.Write(b)
}

// dial connects to f without a handshake.
func dial(t *testing.T, f *Fabric) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", f.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Strangers that say nothing are dropped, and keep no rank out meanwhile.
func TestSilentStrangers(t *testing.T) {
	o := options(1, 1)
	o.OpenTimeout = 100 * time.Millisecond
	target, _ := serve(t, o)
	var strangers []net.Conn
	for range halfOpen + 10 {
		strangers = append(strangers, dial(t, target))
	}
	f := start(t, options(0, 1))
	f.SetPeer(as(target))
	until(t, "a rank gets in", func() bool {
		_, err := f.Call(soon(t), 1, nil)
		return err == nil
	})
	for _, conn := range strangers {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a silent stranger read %d bytes, error %v", n, err)
		}
	}
	stranger := dial(t, target)
	if _, err := stranger.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(stranger); len(rest) > 0 {
		t.Errorf("a web client was answered %q", rest)
	}
}

func TestOldIncarnationIsTurnedAway(t *testing.T) {
	o := options(1, 1)
	var told observer
	o.Observe = told.observe
	target, _ := serve(t, o)
	target.SetPeer(fabric.Peer{Rank: 0, Incarnation: 2})
	f := start(t, options(0, 1))
	f.SetPeer(as(target))
	if _, err := f.Call(soon(t), 1, nil); !errors.Is(err, fabric.ErrUnreachable) {
		t.Errorf("an incarnation that was replaced was answered %v", err)
	}
	told.wait(t, "was replaced")
}
