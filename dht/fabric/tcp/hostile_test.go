package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
	"cascadekv/internal/testing/fabrictest"
)

// enter opens a stream to f as rank 0, whatever is to be done on it.
func enter(t *testing.T, f *Fabric, p purpose) net.Conn {
	t.Helper()
	conn := dial(t, f)
	o := options(0, 1)
	if err := newIdentity(&o).open(t.Context(), conn, p, f.Self(), f.options.Incarnation); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestHostileFrames(t *testing.T) {
	read := encodeRead(fabric.Source{Length: 1 << 20}, 1e9)
	read[headerSize+23] = 0x80 // a negative length
	call := header{kind: kindCall, id: 1, number: 1e10}.frame(make([]byte, 1<<20))
	long := bytes.Clone(call)
	long[7] = 1 // 16 MiB more
	slow := header{kind: kindCall, id: 1, number: 5e8}.frame(sleepRequest)
	for name, c := range map[string]struct {
		on     purpose
		frames []byte
	}{
		"nothing known":       {forCalls, bytes.Repeat([]byte{0xEE}, 100)},
		"long call":           {forCalls, long},
		"answer":              {forCalls, header{kind: kindAnswer, id: 1}.frame(nil)},
		"call twice":          {forCalls, append(bytes.Clone(slow), slow...)},
		"read on calls":       {forCalls, read[:]},
		"call on reads":       {forPayloads, call},
		"negative read":       {forPayloads, read[:]},
		"payload":             {forPayloads, append(header{kind: kindPayload, number: 64}.frame(nil), make([]byte, 64)...)},
		"nothing known there": {forPayloads, bytes.Repeat([]byte{0xEE}, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			var told observer
			o := options(1, 1)
			o.Observe = told.observe
			f, _ := serve(t, o)
			conn := enter(t, f, c.on)
			_, _ = conn.Write(c.frames)
			if rest, _ := io.ReadAll(conn); len(rest) > 0 {
				t.Errorf("it was answered %x", rest)
			}
			told.wait(t, errFrame.Error())
		})
	}
}

// sleepRequest makes a fabrictest peer sleep for half a second.
var sleepRequest = []byte("s[500000000,0]")

// A peer that asks for a payload and does not take it can not pin it for long.
func TestSlowReader(t *testing.T) {
	var told observer
	o := options(1, 1)
	o.Observe = told.observe
	f, p := serve(t, o)
	src, err := fabrictest.Remote{Fabric: f, Rank: 1}.Put(soon(t), 64<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	conn := enter(t, f, forPayloads)
	ask := encodeRead(src, uint64(50*time.Millisecond))
	if _, err := conn.Write(ask[:]); err != nil {
		t.Fatal(err)
	}
	until(t, "the payload is held", func() bool { return p.Stats().Holds == 1 })
	until(t, "it is held no more", func() bool { return p.Stats().Holds == 0 })
	told.wait(t, "the reader is slow")
}

// Close does not wait for a slow reader.
func TestCloseWithSlowReader(t *testing.T) {
	f, p := serve(t, options(1, 1))
	src, err := fabrictest.Remote{Fabric: f, Rank: 1}.Put(soon(t), 64<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	conn := enter(t, f, forPayloads)
	ask := encodeRead(src, uint64(time.Hour))
	if _, err := conn.Write(ask[:]); err != nil {
		t.Fatal(err)
	}
	until(t, "the payload is held", func() bool { return p.Stats().Holds == 1 })
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if s := p.Stats(); s.Holds != 0 {
		t.Errorf("after Close: %+v", s)
	}
}

// impostor is a peer with the right secret that behaves as it likes after the
// handshake.
func impostor(t *testing.T, behave func(conn net.Conn, p purpose)) *Fabric {
	t.Helper()
	addr := peer(t, func(conn net.Conn) {
		o := options(1, 1)
		if g, err := newIdentity(&o).accept(t.Context(), conn, steps{}); err == nil {
			behave(conn, g.purpose)
		}
	})
	f := start(t, options(0, 1))
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: addr})
	return f
}

func mapped(t *testing.T, size int64) []byte {
	t.Helper()
	m, err := arena.MapAnonymous(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m.Bytes()
}

func TestImpostors(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		answer []byte
		want   error
		text   string
	}{
		"silent":         {nil, context.DeadlineExceeded, ""},
		"half":           {append(header{kind: kindPayload, number: size}.frame(nil), make([]byte, size/2)...), context.DeadlineExceeded, ""},
		"header cut":     {header{kind: kindPayload, number: size}.frame(nil)[:20], context.DeadlineExceeded, ""},
		"other length":   {header{kind: kindPayload, number: size + 1}.frame(nil), fabric.ErrUnreachable, "broken frame"},
		"wrong kind":     {header{kind: kindAnswer, id: 1}.frame([]byte("x")), fabric.ErrUnreachable, "broken frame"},
		"noise":          {bytes.Repeat([]byte{0x55}, 100), fabric.ErrUnreachable, "broken frame"},
		"stale and more": {append(header{kind: kindStale}.frame(nil), 1), fabric.ErrUnreachable, "broken frame"},
		"error and more": {append(header{kind: kindFailure}.frame([]byte("no")), 1), fabric.ErrUnreachable, "broken frame"},
		"stale":          {header{kind: kindStale}.frame(nil), fabric.ErrStale, ""},
		"error":          {header{kind: kindFailure}.frame([]byte("no")), nil, "rank 1: no"},
	} {
		t.Run(name, func(t *testing.T) {
			f := impostor(t, func(conn net.Conn, _ purpose) {
				_, _ = io.CopyN(io.Discard, conn, headerSize+readSize)
				_, _ = conn.Write(c.answer)
				_, _ = io.Copy(io.Discard, conn)
			})
			dst := mapped(t, size)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := f.Read(ctx, 1, fabric.Source{Length: size}, dst)
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("a read was answered %v, want %v with %q", err, c.want, c.text)
			}
		})
	}
}

// A payload that goes on after the deadline does not reach memory any more.
func TestLatePayload(t *testing.T) {
	const size = 8 << 20
	late := make(chan struct{})
	f := impostor(t, func(conn net.Conn, _ purpose) {
		_, _ = io.CopyN(io.Discard, conn, headerSize+readSize)
		_, _ = conn.Write(append(header{kind: kindPayload, number: size}.frame(nil), bytes.Repeat([]byte{1}, size/2)...))
		<-late
		_, _ = conn.Write(bytes.Repeat([]byte{2}, size/2))
	})
	dst := mapped(t, size)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := f.Read(ctx, 1, fabric.Source{Length: size}, dst)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read was answered %v", err)
	}
	clear(dst)
	close(late)
	time.Sleep(50 * time.Millisecond)
	if n := len(dst) - bytes.Count(dst, []byte{0}); n > 0 {
		t.Errorf("%d bytes were written after the read had returned", n)
	}
}

func TestBadAnswers(t *testing.T) {
	for name, answer := range map[string][]byte{
		"a call not made": header{kind: kindAnswer, id: 99}.frame(nil),
		"a payload":       header{kind: kindPayload, number: 9}.frame(nil),
		"noise":           bytes.Repeat([]byte{0x77}, 64),
	} {
		f := impostor(t, func(conn net.Conn, _ purpose) {
			_, _ = io.CopyN(io.Discard, conn, headerSize)
			_, _ = conn.Write(answer)
			_, _ = io.Copy(io.Discard, conn)
		})
		_, err := f.Call(soon(t), 1, nil)
		if !errors.Is(err, fabric.ErrUnreachable) || !errors.Is(err, errFrame) {
			t.Errorf("%s: a call was answered %v", name, err)
		}
	}
}

// A stream that breaks is replaced, of calls and of payloads.
func TestStreamsAreReplaced(t *testing.T) {
	target, _ := serve(t, options(1, 1))
	f := start(t, options(0, 1))
	f.SetPeer(as(target))
	r := fabrictest.Remote{Fabric: f, Rank: 1}
	src, err := r.Put(soon(t), 1<<20, 3)
	if err != nil {
		t.Fatal(err)
	}
	dst := mapped(t, 1<<20)
	for range 5 {
		until(t, "a call succeeds", func() bool {
			_, err := f.Call(soon(t), 1, []byte("e"))
			return err == nil
		})
		until(t, "a read succeeds", func() bool { return f.Read(soon(t), 1, src, dst) == nil })
		if err := fabrictest.Check(dst, 3, 0); err != nil {
			t.Fatal(err)
		}
		target.mu.Lock()
		for c := range target.here {
			shut(c)
		}
		target.mu.Unlock()
	}
}

// What is beyond Requests waits, and is answered in the end.
func TestManyRequests(t *testing.T) {
	o := options(1, 1)
	o.Requests = 2
	target, _ := serve(t, o)
	f := start(t, options(0, 1))
	f.SetPeer(as(target))
	var calls sync.WaitGroup
	for range 12 {
		calls.Go(func() {
			if err := (fabrictest.Remote{Fabric: f, Rank: 1}).Sleep(soon(t), 10*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

// A failed attempt is not repeated by every operation; a new address is tried
// at once.
func TestBackoff(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // now nobody listens there
	f := start(t, options(0, 1))
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: l.Addr().String()})
	for range 100 {
		if _, err := f.Call(soon(t), 1, nil); !errors.Is(err, fabric.ErrUnreachable) {
			t.Fatalf("a call of nobody was answered %v", err)
		}
	}
	f.mu.Lock()
	life := f.lives[1]
	f.mu.Unlock()
	life.mu.Lock()
	backoff := life.backoff
	life.mu.Unlock()
	if backoff <= firstBackoff {
		t.Errorf("the next attempt is due after %v", backoff)
	}
	target, _ := serve(t, options(1, 1))
	f.SetPeer(as(target))
	if _, err := f.Call(soon(t), 1, nil); err != nil {
		t.Errorf("a call at the new address was answered %v", err)
	}
}

// Calls that come before Serve wait for it.
func TestCallsBeforeServe(t *testing.T) {
	target := start(t, options(1, 1))
	f := start(t, options(0, 1))
	f.SetPeer(as(target))
	done := make(chan error, 1)
	go func() {
		_, err := f.Call(soon(t), 1, nil)
		done <- err
	}()
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := target.Serve(p); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
