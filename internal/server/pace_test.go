package server

import (
	"testing"

	"golang.org/x/sys/unix"
)

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
		got, err := unix.GetsockoptString(c.sock.FD(), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || got != "reno" {
			t.Errorf("congestion control %q (%v), want reno", got, err)
		}
	}
}
