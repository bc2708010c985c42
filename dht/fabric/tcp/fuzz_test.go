package tcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

// What is decoded is within its bounds, and is encoded as it was.
func FuzzFrame(f *testing.F) {
	read := encodeRead(fabric.Source{Region: 7, Length: 5, Generation: 9}, 1e9)
	f.Add(read[:])
	for k := kind(0); k < kindStale+2; k++ {
		f.Add(header{kind: k, id: 3, number: 4}.frame(make([]byte, readSize)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		h, err := decode((*[headerSize]byte)(b))
		if err != nil {
			return
		}
		var again [headerSize]byte
		h.encode(&again)
		if h.length > fabric.MaxMessage || !bytes.Equal(again[:], b[:headerSize]) {
			t.Fatalf("%+v of %x", h, b)
		}
		if h.kind != kindRead || len(b) < headerSize+readSize {
			return
		}
		src, err := decodeRead((*[readSize]byte)(b[headerSize:]))
		if err != nil {
			return
		}
		if all := encodeRead(src, h.number); src.Length < 0 || src.Length > fabric.MaxRead || !bytes.Equal(all[:], b[:len(all)]) {
			t.Fatalf("%+v of %x", src, b)
		}
	})
}

// script is the other side of a handshake, which says what it likes.
type script struct {
	io.Reader
	io.Writer
}

// Nobody gets through the handshake without the secret.
func FuzzHandshake(f *testing.F) {
	g := golden().greeting(forCalls, 3)
	raw := g.encode()
	f.Add(raw[:])
	f.Add(append(raw[:], make([]byte, 2*codeSize)...))
	f.Add([]byte(magic + "\x09\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := golden().accept(t.Context(), script{bytes.NewReader(b), io.Discard}, steps{}); err == nil {
			t.Fatalf("%x was let in as %+v", b, g)
		}
		if err := golden().open(t.Context(), script{bytes.NewReader(b), io.Discard}, forCalls, 2, 0x1111); err == nil {
			t.Fatalf("%x passed for a peer", b)
		}
		if len(b) < greetingSize {
			return
		}
		if g, err := decodeGreeting((*[greetingSize]byte)(b)); err == nil && string(b[:8]) == magic {
			if again := g.encode(); !bytes.Equal(again[:], b[:greetingSize]) {
				t.Fatalf("%+v of %x", g, b)
			}
		}
	})
}

// connected returns both ends of a connection to l.
func connected(t testing.TB, l net.Listener) (here, there net.Conn) {
	t.Helper()
	there, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return here, there
}

// Whatever a peer sends, its streams end, and nothing stays held.
func FuzzStreams(f *testing.F) {
	p, err := fabrictest.NewPeer()
	if err != nil {
		f.Fatal(err)
	}
	rank, err := New(options(1, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		rank.Close()
		p.Close()
	})
	if err := rank.Serve(p); err != nil {
		f.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	src, err := fabrictest.Remote{Fabric: rank, Rank: 1}.Put(ctx, 1000, 1)
	if err != nil {
		f.Fatal(err)
	}
	read := encodeRead(src, 1e9)
	call := header{kind: kindCall, id: 1, number: 1e9}.frame([]byte("echo"))
	f.Add(append(bytes.Clone(read[:]), read[:]...))
	f.Add(append(bytes.Clone(call), header{kind: kindCancel, id: 1}.frame(nil)...))
	f.Add(append(bytes.Clone(call), call...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, serve := range []func(net.Conn) error{
			func(c net.Conn) error { return rank.answerCalls(c, 0) },
			rank.answerReads,
		} {
			here, there := connected(t, l)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = serve(here)
				here.Close()
			}()
			_, _ = there.Write(b)
			if err := there.(*net.TCPConn).CloseWrite(); err == nil {
				_, _ = io.Copy(io.Discard, there)
			}
			there.Close()
			<-done
		}
		until(t, "nothing is held", func() bool { s := p.Stats(); return s.Holds == 0 && s.Running == 0 })
	})
}
