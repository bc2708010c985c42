package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/testing/testuser"
)

// heard accepts one connection and returns all bytes that come before its end.
func heard(l net.Listener) <-chan string {
	bytes := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			bytes <- "nobody came: " + err.Error()
			return
		}
		defer c.Close()
		got, _ := io.ReadAll(c) // the client's end is what it waits for
		bytes <- string(got)
	}()
	return bytes
}

// openPath is a path at which any user can make a socket.
func openPath(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o777} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "s")
}

func TestServerOfAnotherUser(t *testing.T) {
	for name, c := range map[string]struct{ network, addr string }{
		"unix":     {"unix", openPath(t)},
		"tcp":      {"tcp", "127.0.0.1:0"},
		"any host": {"tcp", ":0"}, // an IPv6 socket, asked over IPv4
		"tcp6":     {"tcp6", "[::1]:0"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.network == "tcp6" {
				l, err := net.Listen(c.network, c.addr)
				testneed.That(t, err == nil, "IPv6 on loopback", "enable it")
				l.Close()
			}
			l := testuser.Listen(t, testuser.Stranger, c.network, c.addr)
			addr := l.Addr().String()
			if name == "any host" {
				addr = strings.Replace(addr, "[::]", "127.0.0.1", 1)
			}
			bytes := heard(l)
			_, err := Dial(c.network, addr, 10*time.Second)
			var foreign *ForeignServerError
			if !errors.As(err, &foreign) || !errors.Is(err, ErrForeignServer) || foreign.UID != testuser.Stranger || foreign.Addr != addr {
				t.Fatalf("%v, want a ForeignServerError of uid %d", err, testuser.Stranger)
			}
			for _, word := range []string{addr, "uid 65534", "server_uids"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %q", err, word)
				}
			}
			if got := <-bytes; got != "" {
				t.Errorf("the other user was sent %q", got)
			}
			client, err := Dial(c.network, addr, 10*time.Second, 7, testuser.Stranger)
			if err != nil {
				t.Fatalf("a listed user: %v", err)
			}
			client.Close()
		})
	}
}

func TestServerOfOwnUser(t *testing.T) {
	for network, addr := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp": "127.0.0.1:0"} {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := Dial(network, l.Addr().String(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		client.Close()
	}
}

// TestListenerOfTheAddressDecides: one that is bound to the address itself decides, as
// the kernel gives it the connections, whoever listens on all addresses.
func TestListenerOfTheAddressDecides(t *testing.T) {
	own, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	addr := own.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	testuser.Listen(t, testuser.Stranger, "tcp6", "[::]:"+port)
	client, err := Dial("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

// TestServerGone: no listener is in the table any more, so nobody knows whose
// the connection is.
func TestServerGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	l.Close()
	var foreign *ForeignServerError
	if err := CheckServer(conn); !errors.As(err, &foreign) || foreign.UID != -1 || !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("%v, want a ForeignServerError without a user", err)
	}
}
