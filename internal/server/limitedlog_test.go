package server

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/said"
)

// TestRefusalsAreLoggedOnce: many refused connections are one line, and a count.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	var log said.Log
	r := newRig(t, 8<<20, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 50 {
		c := dialAs(t, stranger, net.Dialer{}, "tcp", r.srv.Addr().String())
		if _, err := resp.NewClient(c, 20*time.Second).Do("PING"); err == nil {
			t.Fatal("another user is served")
		}
	}
	lines := log.Lines("connection refused")
	if len(lines) != 1 || !strings.Contains(lines[0], "uid=65534") || !strings.Contains(lines[0], "from=127.0.0.1:") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if n := r.srv.metrics.refused.Load(); n != 50 {
		t.Errorf("%d connections counted as refused", n)
	}
}

// TestSource: users of one address are told apart, and addresses of one IPv6
// network are not.
func TestSource(t *testing.T) {
	for _, c := range []struct {
		uid  int
		ip   string
		want string
	}{
		{1000, "127.0.0.1", "uid 1000"}, {unknownUID, "10.1.2.3", "10.1.2.3"}, {unknownUID, "::ffff:10.1.2.3", "10.1.2.3"},
		{unknownUID, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"}, {unknownUID, "", "unknown"},
	} {
		if got := source(c.uid, net.ParseIP(c.ip)); got != c.want {
			t.Errorf("%d %s: %q, want %q", c.uid, c.ip, got, c.want)
		}
	}
}
