package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// With few descriptors a rank takes fewer clients than are configured, says so,
// and serves those it took.
func TestFewDescriptorsForClients(t *testing.T) {
	r := startWithin(t, []string{"/bin/sh", "-c", `ulimit -n 100; exec "$0" "$@"`}, newPlace(t, "64MiB").withLustre())
	r.untilSays(t, "cuts max_connections", "limit=100", "max_connections=4096")
	served, refused := 0, 0
	for range 90 {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprint(c, "PING\r\n")
		line, err := bufio.NewReader(c).ReadString('\n')
		switch {
		case line == "+PONG\r\n":
			served++
			if served > 20 { // leave places for the client below
				c.Close()
				served--
			}
		case strings.Contains(line, "max number of clients"):
			refused++
		default:
			t.Fatalf("after %d clients: %q, %v", served, line, err)
		}
	}
	c := r.dial(t)
	until(t, "place of one that has left", func() bool { // the rank may not know yet
		err := c.Set("first", []byte("v"))
		if err != nil {
			c = r.dial(t)
		}
		return err == nil
	})
	for i := range 30 {
		key := fmt.Sprint("k", i)
		if err := c.Set(key, []byte(strings.Repeat("v", 100_000))); err != nil {
			t.Fatalf("SET %d: %v", i, err)
		}
		if _, err := c.Get(key, make([]byte, 100_000)); err != nil {
			t.Errorf("GET %d: %v", i, err)
		}
	}
}

// All places may be asked for at once: who finds none is told, and nobody waits
// for descriptors.
func TestMoreClientsThanDescriptors(t *testing.T) {
	r := startWithin(t, []string{"/bin/sh", "-c", `ulimit -n 100; exec "$0" "$@"`}, newPlace(t, "64MiB"))
	var served, refused int
	for range 120 {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprint(c, "PING\r\n")
		switch line, err := bufio.NewReader(c).ReadString('\n'); {
		case line == "+PONG\r\n":
			served++
		case strings.Contains(line, "max number of clients"):
			refused++
		default:
			t.Fatalf("after %d clients: %q, %v", served, line, err)
		}
	}
	if served < 20 || served > 50 || served+refused != 120 {
		t.Errorf("%d clients are served and %d refused, of 100 descriptors", served, refused)
	}
}
