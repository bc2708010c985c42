package server

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/need"
	"cascadekv/internal/resp"
)

// stranger is a user whom no rank of these tests belongs to.
const stranger = 65534

// asUser calls f on a thread that acts as another user, and ends with it.
func asUser(t testing.TB, uid int, f func() error) {
	t.Helper()
	need.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: nobody else gets the thread's user
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- errno
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// dialAs connects as another user.
func dialAs(t testing.TB, uid int, d net.Dialer, network, addr string) (c net.Conn) {
	t.Helper()
	asUser(t, uid, func() (err error) {
		c, err = d.Dial(network, addr)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// TestNoCommandOfAnUnprovenPeer: what another user sends and closes at once is
// not executed, and neither is what nobody can be attributed to.
func TestNoCommandOfAnUnprovenPeer(t *testing.T) {
	r := newRig(t, 16<<20)
	for i := range 200 {
		c := dialAs(t, stranger, net.Dialer{}, "tcp", r.srv.Addr().String())
		fmt.Fprintf(c, "SET k%d evil\r\n", i)
		if i%3 == 0 {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	last := dialAs(t, stranger, net.Dialer{}, "tcp", r.srv.Addr().String()) // all before it are accepted first
	_ = last.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := resp.NewClient(last, 20*time.Second).Do("PING"); err == nil {
		t.Error("another user is served")
	}
	eventually(t, "all are gone", func() bool { return r.srv.connections() == 0 })
	if n := r.store.Len("redis/0"); n != 0 {
		t.Errorf("%d of 200 commands of another user were executed", n)
	}
}
