package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"cascadekv/dht/fabric/tcp"
	"cascadekv/internal/testing/testlog"
)

// TestStrangersAreCounted: a flood makes a few lines, and a rank of the job is
// still named.
func TestStrangersAreCounted(t *testing.T) {
	out := &testlog.Log{}
	s := strangers{log: slog.New(slog.NewTextHandler(out, nil))}
	for i := range 1000 {
		s.observe(&tcp.StreamError{Remote: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1000 + i}, Err: errors.New("noise")})
	}
	s.observe(&tcp.StreamError{Remote: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9}, From: 7, Proved: true, Err: errors.New("broken frame")})
	s.observe(fmt.Errorf("tcp: accept a stream: %w", errors.New("too many open files")))
	if lines := out.Lines("level=WARN"); len(lines) != 3 || !out.Has("rank 7") || !out.Has("suppressed=999") {
		t.Errorf("%d lines: %s", len(lines), out)
	}
}
