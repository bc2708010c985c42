package server

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSameHost(t *testing.T) {
	for _, c := range []struct {
		local, remote string
		same          bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"::ffff:127.0.0.1", "127.0.0.1", true},
		{"10.1.2.3", "10.1.2.3", true},
		{"fe80::1", "fe80::1", true},
		{"::ffff:10.1.2.3", "10.1.2.3", true},
		{"10.1.2.3", "10.1.2.4", false},
		{"fe80::1", "fe80::2", false},
	} {
		local, remote := &net.TCPAddr{IP: net.ParseIP(c.local), Port: 1}, &net.TCPAddr{IP: net.ParseIP(c.remote), Port: 2}
		if got := sameHost(local, remote); got != c.same {
			t.Errorf("%s to %s: on the same machine %v, want %v", c.local, c.remote, got, c.same)
		}
	}
	if u := (&net.UnixAddr{Name: "s"}); sameHost(u, u) {
		t.Error("a unix socket has no pace")
	}
}

// TestClientsOfThisMachineAreNotPaced: whatever the system's choice is.
func TestClientsOfThisMachineAreNotPaced(t *testing.T) {
	r := newRig(t, 8<<20)
	if _, err := r.client("tcp").Do("PING"); err != nil {
		t.Fatal(err)
	}
	r.srv.mu.Lock()
	defer r.srv.mu.Unlock()
	if len(r.srv.conns) != 1 {
		t.Fatalf("%d connections", len(r.srv.conns))
	}
	for c := range r.srv.conns {
		got, err := unix.GetsockoptString(c.wire.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || got != unpaced {
			t.Errorf("congestion control %q (%v), want %q", got, err, unpaced)
		}
	}
}
