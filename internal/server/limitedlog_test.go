package server

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
	"cascadekv/internal/testing/testuser"
)

// TestRefusalsAreLoggedOnce: many refused connections are one line, and a count.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	var log testlog.Log
	r := newRig(t, 8<<20, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 50 {
		c := testuser.Dial(t, testuser.Stranger, net.Dialer{}, "tcp", r.srv.Addr().String())
		if _, err := resp.NewClient(c, 20*time.Second).Do("PING"); err == nil {
			t.Fatal("another user is served")
		}
	}
	lines := log.Lines("connection refused")
	if len(lines) != 1 || !strings.Contains(lines[0], "uid=65534") || !strings.Contains(lines[0], "from=127.0.0.1:") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if n := r.srv.counters.refused.Load(); n != 50 {
		t.Errorf("%d connections counted as refused", n)
	}
}

// TestOtherProtocols: clients of HTTP and TLS are answered in their protocol, and
// named in the log once, with where they came from.
func TestOtherProtocols(t *testing.T) {
	const hello = "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03 no end of line"
	for name, c := range map[string]struct{ sent, answer, logged string }{
		"HTTP":                 {"GET /healthz HTTP/1.1\r\nHost: x\r\nUser-Agent: it's \"odd\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "client of HTTP"},
		"HTTP, a form":         {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\nSET k evil\r\n", "HTTP/1.1 400 Bad Request\r\n", "client of HTTP"},
		"HTTP/2":               {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "client of HTTP"},
		"HTTP, after commands": {"PING\r\nHEAD / HTTP/1.0\r\n\r\n", "+PONG\r\n-ERR Protocol error: this is not a web server at byte 6\r\n", "client of HTTP"},
		"TLS":                  {hello, tlsRefusal, "client of TLS"},
		"TLS, one byte":        {hello[:1], tlsRefusal, "client of TLS"},
		"neither":              {"*x\r\n", "-ERR Protocol error: invalid multibulk length at byte 0\r\n", "protocol error"},
		"a command of a key":   {"GET HTTP/1.1\r\nSET k HTTP/1.1\r\nQUIT\r\n", "$-1\r\n+OK\r\n+OK\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log testlog.Log
			r := newRig(t, 8<<20, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			const times = 30
			for range times {
				nc, rd := r.raw("tcp")
				if _, err := io.WriteString(nc, c.sent); err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(rd)
				if err != nil || !strings.HasPrefix(string(answer), c.answer) {
					t.Fatalf("%q, %v; want %q", answer, err, c.answer)
				}
			}
			if n := r.store.Len("redis/0"); (n > 0) != (c.logged == "") {
				t.Errorf("%d names", n)
			}
			if c.logged == "" {
				return
			}
			eventually(t, "all are counted", func() bool { return r.srv.counters.protocolErrors.Load() == times })
			if lines := log.Lines(c.logged); len(lines) != 1 || !strings.Contains(lines[0], "peer=127.0.0.1:") {
				t.Errorf("%d lines: %q", len(lines), lines)
			}
		})
	}
}

// TestTheRestIsLogged: what was suppressed after the last line is reported later.
func TestTheRestIsLogged(t *testing.T) {
	var log testlog.Log
	s := &Server{log: slog.New(slog.NewTextHandler(&log, nil))}
	s.limited.auth.Every = time.Millisecond
	for range 3 {
		s.limited.auth.Allow("x")
	}
	s.limited.refused.Allow("x")
	eventually(t, "the rest is reported", func() bool {
		s.logRest()
		return log.Has("failed authentications")
	})
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}
