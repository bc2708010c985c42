package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// TestReferredValuesOutliveTheRank: clients stop in the middle of values that are
// sent by reference, the rank is killed, and the next one fills the arena with
// others. The clients read what was theirs to the end of what was sent.
func TestReferredValuesOutliveTheRank(t *testing.T) {
	const size, count, inFlight = 2 << 20, 8, 64 << 10
	p := newPlace(t, "32MiB")
	r := start(t, p)
	c := r.dial(t)
	late := make([]net.Conn, count)
	values := make([][]byte, count)
	for i := range late {
		key := fmt.Sprint("late", i)
		values[i] = bytesOf(key, size)
		if err := c.Set(key, values[i]); err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("unix", p.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "GET %s\r\n", key)
		got := make([]byte, len(fmt.Sprintf("$%d\r\n", size))+size-inFlight)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatal(err)
		}
		late[i] = conn
	}
	until(t, "all values are sent", func() bool { return r.stats(t).Views == 0 })
	r.kill()

	r = start(t, p)
	c = r.dial(t)
	for i := range 4 * count {
		key := fmt.Sprint("other", i)
		if err := c.Set(key, bytesOf(key, size)); err != nil {
			t.Fatal(err)
		}
	}
	for i, conn := range late {
		got, err := io.ReadAll(conn)
		if want := append(bytes.Clone(values[i][size-inFlight:]), "\r\n"...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("value %d: the last %d bytes are not what was stored (%v)", i, len(got), err)
		}
	}
}
