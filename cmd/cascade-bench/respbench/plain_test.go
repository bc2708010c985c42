package respbench

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// plainPair is a plain connection and its other end.
func plainPair(t *testing.T, network, addr string) (*plainConn, net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialPlain(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), c.release()); err != nil {
			t.Error(err)
		}
	})
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	_ = peer.SetDeadline(time.Now().Add(20 * time.Second)) // of a test that would hang
	return c, peer
}

func TestPlainConn(t *testing.T) {
	for network, addr := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp": "127.0.0.1:0"} {
		t.Run(network, func(t *testing.T) {
			c, peer := plainPair(t, network, addr)
			parts := [][]byte{[]byte("head"), bytes.Repeat([]byte("0123456789abcdef"), 200_000), []byte("\r\n")}
			want := bytes.Join(parts, nil)
			sent := make(chan error, 1)
			go func() { sent <- c.Writev(parts) }()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("other bytes than were sent, %v", err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := peer.Write(want)
				sent <- errors.Join(err, peer.Close())
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes of %d, or others, %v", len(got), len(want), err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPlainConnHangsUp: who waits is woken, and so is whoever comes later.
func TestPlainConnHangsUp(t *testing.T) {
	large := make([]byte, 16<<20)
	for name, wait := range map[string]func(*plainConn) error{
		"reading": func(c *plainConn) error { _, err := c.Read(make([]byte, 1)); return err },
		"writing": func(c *plainConn) error { return c.Writev([][]byte{large}) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := plainPair(t, "unix", filepath.Join(t.TempDir(), "s"))
			ended := make(chan error, 1)
			go func() { ended <- wait(c) }()
			time.Sleep(20 * time.Millisecond) // most likely it waits by then; both orders must do
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("got %v, want %v", err, net.ErrClosed)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("still waiting")
			}
			if err := wait(c); !errors.Is(err, net.ErrClosed) {
				t.Errorf("later: got %v, want %v", err, net.ErrClosed)
			}
		})
	}
}

// TestPlainConnLetsTheCollectorRun: whoever stops the program does not wait for
// a server that says nothing.
func TestPlainConnLetsTheCollectorRun(t *testing.T) {
	c, _ := plainPair(t, "unix", filepath.Join(t.TempDir(), "s"))
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	for range 50 {
		time.Sleep(time.Millisecond)
		runtime.GC()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}
