package testuser

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
)

// Stranger is a user to whom nothing of a test belongs.
const Stranger = 65534

// Do calls f on a thread that acts as user uid. An error of f ends the test.
func Do(t testing.TB, uid int, f func() error) {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: nobody else gets the thread's user
		// Not syscall.Setresuid, which is for all threads.
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

// Dial connects as user uid. The connection ends with the test.
func Dial(t testing.TB, uid int, d net.Dialer, network, addr string) (c net.Conn) {
	t.Helper()
	Do(t, uid, func() (err error) {
		c, err = d.Dial(network, addr)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Listen listens as user uid, whom the kernel notes with the socket. The listener
// ends with the test.
func Listen(t testing.TB, uid int, network, addr string) (l net.Listener) {
	t.Helper()
	Do(t, uid, func() (err error) {
		l, err = net.Listen(network, addr)
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}
