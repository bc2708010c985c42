package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"cascadekv/internal/arena"
)

// stalled asks for a value and reads all but the last bytes of it, which are on
// their way in the kernel then.
type stalled struct {
	conn net.Conn
	key  string
	rest []byte
}

// inFlight is less than a socket holds.
const inFlight = 64 << 10

func (r *rig) stall(network, key string, value []byte) stalled {
	r.t.Helper()
	conn, _ := r.raw(network)
	_ = conn.SetDeadline(time.Now().Add(5 * time.Minute)) // others have their turn before it ends
	if _, err := fmt.Fprintf(conn, "GET %s\r\n", key); err != nil {
		r.t.Fatal(err)
	}
	header := fmt.Sprintf("$%d\r\n", len(value))
	got := make([]byte, len(header)+len(value)-inFlight)
	if _, err := io.ReadFull(conn, got); err != nil {
		r.t.Fatalf("%s over %s: %v", key, network, err)
	}
	if want := header + string(value[:len(value)-inFlight]); string(got) != want {
		r.t.Fatalf("%s over %s: the first %d bytes are wrong", key, network, len(got))
	}
	return stalled{conn, key, append(bytes.Clone(value[len(value)-inFlight:]), "\r\n"...)}
}

func (s stalled) finish(t *testing.T) {
	t.Helper()
	got := make([]byte, len(s.rest))
	if _, err := io.ReadFull(s.conn, got); err != nil || !bytes.Equal(got, s.rest) {
		t.Errorf("%s: the end of what a slow client reads is not what was stored (%v)", s.key, err)
	}
}

// TestSlowReader: clients stop in the middle of values, which are deleted, and the
// memory is used for others. What the clients read at last is what they asked for.
func TestSlowReader(t *testing.T) {
	if err := arena.TryHugePages("/dev/shm"); err != nil {
		t.Logf("values are sent by pages of 4 KiB: %v", err)
	}
	for _, lend := range []bool{true, false} {
		t.Run(fmt.Sprint("by reference ", lend), func(t *testing.T) {
			const size, count = 2 << 20, 16
			r := newRig(t, 48<<20, func(o *Options) { o.ZeroCopy = lend })
			c := r.client("unix")
			var late []stalled
			for i := range count {
				key, value := fmt.Sprint("late", i), randomBytes(uint64(i), size)
				if err := c.Set(key, value); err != nil {
					t.Fatal(err)
				}
				late = append(late, r.stall([]string{"unix", "tcp"}[i%2], key, value))
			}
			for i := range count {
				if _, err := c.Do("DEL", fmt.Sprint("late", i)); err != nil {
					t.Fatal(err)
				}
			}
			other := randomBytes(1000, size)
			for i := range 3 * count {
				other[0], other[1] = byte(i), byte(i>>8)
				if err := c.Set(fmt.Sprint("other", i), other); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range late {
				s.finish(t)
			}
			if n := r.srv.Snapshot().ZeroCopy; (n == count*size) != lend || !lend && n > 0 {
				t.Errorf("%d bytes of %d were sent by reference", n, count*size)
			}
		})
	}
}

// TestReaderThatLeaves: a client that goes away in the middle of a value that is
// sent by reference ends its connection, and nothing of the value comes to the
// next client.
func TestReaderThatLeaves(t *testing.T) {
	const size = 4 << 20
	r := newRig(t, 32<<20)
	c := r.client("unix")
	if err := c.Set("left", randomBytes(1, size)); err != nil {
		t.Fatal(err)
	}
	value := randomBytes(2, size)
	if err := c.Set("key", value); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	for range 16 { // half of the pipes that are kept
		conn, rd := r.raw("unix")
		fmt.Fprint(conn, "GET left\r\n")
		if _, err := io.CopyN(io.Discard, rd, size/4); err != nil {
			t.Fatal(err)
		}
		conn.Close() // the rank waits for room in the middle of a piece
		for range 2 {
			if n, err := c.Get("key", got); err != nil || n != size || !bytes.Equal(got, value) {
				t.Fatalf("GET: %d bytes, %v", n, err)
			}
		}
	}
}
