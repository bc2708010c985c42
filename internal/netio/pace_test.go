package netio

import (
	"net"
	"testing"
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
