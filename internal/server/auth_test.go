package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/admission"
	"cascadekv/internal/netio"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
	"cascadekv/internal/testing/testuser"
)

// TestPasswordGuessing: another user of the node gets few guesses, the rank's own
// user comes in meanwhile, and the log has it once.
func TestPasswordGuessing(t *testing.T) {
	var log testlog.Log
	r := newRig(t, 8<<20, func(o *Options) {
		o.AllowUIDs, o.Limits.Password, o.Log = []int{testuser.Stranger}, "s3cret", slog.New(slog.NewTextHandler(&log, nil))
	})
	looked, refused := 0, 0
	began := time.Now()
	for range 50 {
		nc := testuser.Dial(t, testuser.Stranger, net.Dialer{}, "tcp", r.srv.Addr().String())
		_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(nc, strings.Repeat("AUTH wrong\r\nHELLO 3 AUTH default wrong\r\n", 20)+"QUIT\r\n") // may be closed meanwhile
		rd := bufio.NewReader(nc)
		for {
			line, err := rd.ReadString('\n')
			if err != nil {
				break
			}
			switch {
			case line == "+OK\r\n": // QUIT
			case strings.HasPrefix(line, "-WRONGPASS"):
				looked++
			case strings.HasPrefix(line, "-ERR too many wrong passwords from uid 65534"):
				refused++
			default:
				t.Fatalf("%q", line)
			}
		}
		nc.Close()
	}
	if most := admission.FreeGuesses + 1 + int(time.Since(began)/admission.FirstBackoff); looked > most || looked < admission.FreeGuesses || refused == 0 {
		t.Errorf("%d guesses were looked at, at most %d may be; %d were refused", looked, most, refused)
	}
	if lines := log.Lines("authentication failed"); len(lines) == 0 || len(lines) > 1+int(time.Since(began)/(10*time.Second)) || !strings.Contains(lines[0], "uid 65534") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if n := r.srv.counters.authFailures.Load(); int(n) != looked+refused {
		t.Errorf("%d failures are counted of %d", n, looked+refused)
	}
	for _, network := range []string{"unix", "tcp"} {
		c := r.client(network)
		for range 3 * admission.FreeGuesses {
			if _, err := c.Do("AUTH", "wrong"); code(err) != "WRONGPASS" {
				t.Errorf("%s: %v", network, err)
			}
		}
		if _, err := c.Do("AUTH", "s3cret"); err != nil {
			t.Errorf("%s: the own user: %v", network, err)
		}
	}
}

// ends waits for the end of a connection, whatever comes before it.
func ends(t testing.TB, what string, nc net.Conn) {
	t.Helper()
	_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.Copy(io.Discard, nc)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("%s: the connection goes on", what)
	}
}

// TestPasswordRotation: another password ends the connections that came in by the
// old one, in whatever they are.
func TestPasswordRotation(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{"rotated": {"one", "two"}, "set": {"", "two"}, "lifted": {"one", ""}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 64<<20, func(o *Options) { o.Limits.Password = c.before })
			value := randomBytes(1, 16<<20)
			login := func(network string) net.Conn {
				nc, _ := r.raw(network)
				cl := resp.NewClient(nc, 20*time.Second)
				if c.before != "" {
					if _, err := cl.Do("AUTH", c.before); err != nil {
						t.Fatal(err)
					}
				}
				if err := cl.Set("k", value); err != nil {
					t.Fatal(err)
				}
				return nc
			}
			parked := map[string]net.Conn{"unix": login("unix"), "tcp": login("tcp")}
			inValue, inReply := login("unix"), login("tcp")
			fmt.Fprintf(inValue, "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1000000\r\nabc")
			fmt.Fprint(inReply, strings.Repeat("GET k\r\n", 20)) // and never read
			time.Sleep(50 * time.Millisecond)                    // so that they are likely where they are to be
			l := *r.srv.limits.Load()
			r.srv.SetLimits(l) // changes nothing
			if n := r.srv.connections(); n != 4 {
				t.Fatalf("%d connections before", n)
			}
			l.Password = c.after
			r.srv.SetLimits(l)
			began := time.Now()
			eventually(t, "the connections of the old password are gone", func() bool { return r.srv.connections() == 0 })
			if d := time.Since(began); d > netio.StallDeadline/4 { // without the cut, one waits for its client so long
				t.Errorf("it took %v", d)
			}
			for what, nc := range parked {
				ends(t, "parked, "+what, nc)
			}
			ends(t, "in a value", inValue)
			if c.after == "" {
				return
			}
			cl := r.client("unix")
			if _, err := cl.Do("GET", "k"); code(err) != "NOAUTH" {
				t.Errorf("without the password: %v", err)
			}
			if c.before != "" {
				if _, err := cl.Do("AUTH", c.before); code(err) != "WRONGPASS" {
					t.Errorf("the old password: %v", err)
				}
			}
			if _, err := cl.Do("AUTH", c.after); err != nil {
				t.Errorf("the new password: %v", err)
			}
		})
	}
}

// TestOldProofIsWorthNothing: a connection that is not ended yet, or that another
// program takes over, has lost its right with the password.
func TestOldProofIsWorthNothing(t *testing.T) {
	r := newRig(t, 8<<20, func(o *Options) { o.Limits.Password = "one" })
	c := r.client("unix")
	if _, err := c.Do("AUTH", "one"); err != nil {
		t.Fatal(err)
	}
	two := "two"
	r.srv.secret.Store(&two) // without the end of connections
	if _, err := c.Do("GET", "k"); code(err) != "NOAUTH" {
		t.Errorf("GET: %v", err)
	}
}
