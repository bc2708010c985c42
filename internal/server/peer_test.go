package server

import (
	"fmt"
	"net"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testuser"
)

// TestNoCommandOfAnUnprovenPeer: what another user sends and closes at once is
// not executed, and neither is what nobody can be attributed to.
func TestNoCommandOfAnUnprovenPeer(t *testing.T) {
	r := newRig(t, 16<<20)
	for i := range 200 {
		c := testuser.Dial(t, testuser.Stranger, net.Dialer{}, "tcp", r.srv.Addr().String())
		fmt.Fprintf(c, "SET k%d evil\r\n", i)
		if i%3 == 0 {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	last := testuser.Dial(t, testuser.Stranger, net.Dialer{}, "tcp", r.srv.Addr().String()) // all before it are accepted first
	_ = last.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := resp.NewClient(last, 20*time.Second).Do("PING"); err == nil {
		t.Error("another user is served")
	}
	eventually(t, "all are gone", func() bool { return r.srv.connections() == 0 })
	if n := r.store.Len("redis/0"); n != 0 {
		t.Errorf("%d of 200 commands of another user were executed", n)
	}
}
