package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/netio"
	"cascadekv/internal/resp"
)

// TestValuesInPieces: values of sizes around those of a bounce come in pieces,
// with pauses between, over several connections at once.
func TestValuesInPieces(t *testing.T) {
	r := newRig(t, 64<<20)
	const bounce = 128 << 10
	sizes := []int{1, inFlight, bounce - 1, bounce, bounce + 1, 2*bounce + 12_345, 1 << 20}
	pieces := []int{700, 5_000, bounce, bounce + 1, 300_000}
	var wg sync.WaitGroup
	for i, size := range sizes {
		for k, piece := range pieces {
			network := []string{"unix", "tcp"}[(i+k)%2]
			conn, _ := r.raw(network)
			wg.Go(func() {
				key, value := fmt.Sprint("pieces", i, k), randomBytes(uint64(i*100+k), size)
				if err := setInPieces(conn, key, value, piece); err != nil {
					t.Errorf("%d bytes in pieces of %d over %s: %v", size, piece, network, err)
				}
			})
		}
	}
	wg.Wait()
	if n := r.srv.poller.Arriving(); n != 0 {
		t.Errorf("%d values are still counted as arriving", n)
	}
}

// setInPieces stores a value, pausing now and then, and compares what GET says.
func setInPieces(conn net.Conn, key string, value []byte, piece int) error {
	command := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value)
	for i := 0; len(command) > 0; i++ {
		p := command[:min(piece, len(command))]
		if _, err := conn.Write(p); err != nil {
			return err
		}
		command = command[len(p):]
		if i%5 == 1 && i < 50 {
			time.Sleep(time.Millisecond) // longer than anybody watches
		}
	}
	var ok [5]byte
	if _, err := io.ReadFull(conn, ok[:]); err != nil || string(ok[:]) != "+OK\r\n" {
		return fmt.Errorf("answer %q, %w", ok, err)
	}
	got := make([]byte, len(value))
	n, err := resp.NewClient(conn, 0).Get(key, got)
	if err == nil && !bytes.Equal(got[:n], value) {
		err = errors.New("what was stored is not what was sent")
	}
	return err
}

// TestValueWithoutItsEnd: a client that stops behind the bytes of a value does
// not hold their room for ever either.
func TestValueWithoutItsEnd(t *testing.T) {
	r := newRig(t, 16<<20)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	w, err := r.srv.poller.AdoptConn(fds[0], true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	v := valueSink{conn: &conn{srv: r.srv, sock: w}}
	defer v.abort()
	if err := v.Receive([]byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if w.Patience != netio.StallDeadline {
		t.Fatalf("the end of the command may take %v, want %v", w.Patience, netio.StallDeadline)
	}
	w.Patience = time.Millisecond
	if _, err := w.Read(make([]byte, 2)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after that: %v", err)
	}
}

// TestClientThatLeavesInAValue: its room comes back.
func TestClientThatLeavesInAValue(t *testing.T) {
	r := newRig(t, 16<<20)
	conn, _ := r.raw("unix")
	if _, err := fmt.Fprintf(conn, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n%s", randomBytes(1, 3_000_000)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	c := r.client("unix")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := c.Set("large", make([]byte, 14_000_000)) // fits once the other's room is free
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got, err := c.Do("EXISTS", "k"); err != nil || got.Int != 0 {
		t.Errorf("half a value is there: %v, %v", got, err)
	}
}
