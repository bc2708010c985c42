package admission

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/testing/testuser"
)

// accepted is a listener whose connections a test takes one by one.
type accepted struct {
	net.Listener
	t testing.TB
}

func listenOn(t testing.TB, network, addr string) accepted {
	t.Helper()
	l, err := net.Listen(network, addr)
	testneed.That(t, err == nil, "an address to listen on, "+addr, "enable IPv6 on the loopback interface")
	t.Cleanup(func() { l.Close() })
	return accepted{l, t}
}

func (a accepted) port() int { return a.Addr().(*net.TCPAddr).Port }

// next is the server's end of the connection that comes next.
func (a accepted) next() *net.TCPConn {
	a.t.Helper()
	nc, err := a.Accept()
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { nc.Close() })
	return nc.(*net.TCPConn)
}

// ownAddress is an address of this machine that is not on loopback, "" if it has
// none.
func ownAddress() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.IsGlobalUnicast() && ip.To4() != nil {
			return ip.String()
		}
	}
	return ""
}

// doors are ways by which a client of this machine comes in over TCP.
func doors(t testing.TB) map[string]struct{ network, listen, host string } {
	all := map[string]struct{ network, listen, host string }{
		"IPv4":                {"tcp4", "127.0.0.1:0", "127.0.0.1"},
		"IPv4, other address": {"tcp4", "0.0.0.0:0", "127.8.7.6"},
		"IPv6":                {"tcp6", "[::1]:0", "::1"},
		"IPv4 by IPv6":        {"tcp", "[::]:0", "127.0.0.1"},
	}
	if a := ownAddress(); a != "" {
		all["own address"] = struct{ network, listen, host string }{"tcp4", "0.0.0.0:0", a}
	}
	return all
}

// TestTCPPeerIsProven: a client of this machine is the user who made its socket,
// by whichever address it comes, and nobody once it has closed its end.
func TestTCPPeerIsProven(t *testing.T) {
	for door, d := range doors(t) {
		t.Run(door, func(t *testing.T) {
			l := listenOn(t, d.network, d.listen)
			addr := net.JoinHostPort(d.host, strconv.Itoa(l.port()))
			for _, uid := range []int{os.Geteuid(), testuser.Stranger} {
				if uid == testuser.Stranger && os.Geteuid() != 0 {
					continue
				}
				for end, close := range map[string]func(*net.TCPConn){
					"open":             nil,
					"closed":           func(c *net.TCPConn) { c.Close() },
					"closed by reset":  func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() },
					"closed on a side": func(c *net.TCPConn) { _ = c.CloseWrite() },
				} {
					c := dialMaybeAs(t, uid, addr)
					fmt.Fprint(c, "PING\r\n")
					srv := l.next()
					if close == nil {
						if got, err := PeerUID(srv); got != uid || err != nil {
							t.Errorf("%s, user %d: %d, %v", end, uid, got, err)
						}
						continue
					}
					close(c)
					eventually(t, "our end sees it", func() bool {
						st, err := tcpState(srv)
						return err == nil && st != unix.BPF_TCP_ESTABLISHED
					})
					if got, err := PeerUID(srv); got != UnknownUID || !errors.Is(err, ErrUnproven) {
						t.Errorf("%s, user %d: %d, %v; want ErrUnproven", end, uid, got, err)
					}
				}
			}
		})
	}
}

func dialMaybeAs(t testing.TB, uid int, addr string) *net.TCPConn {
	t.Helper()
	if uid != os.Geteuid() {
		return testuser.Dial(t, uid, net.Dialer{}, "tcp", addr).(*net.TCPConn)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// TestMultipathPeer: a client of Multipath TCP is its user, or nobody once it has
// closed its end, and never another one. The kernel keeps its socket for a while.
func TestMultipathPeer(t *testing.T) {
	l := listenOn(t, "tcp4", "127.0.0.1:0")
	var d net.Dialer
	d.SetMultipathTCP(true)
	c := testuser.Dial(t, testuser.Stranger, d, "tcp", l.Addr().String())
	fmt.Fprint(c, "PING\r\n")
	srv := l.next()
	if uid, err := PeerUID(srv); uid != testuser.Stranger || err != nil {
		t.Errorf("open: %d, %v", uid, err)
	}
	c.Close()
	for range 50 {
		if uid, err := PeerUID(srv); !errors.Is(err, ErrUnproven) && (uid != testuser.Stranger || err != nil) {
			t.Errorf("closed: %d, %v", uid, err)
		}
		time.Sleep(4 * time.Millisecond)
	}
}

// TestTCPPeerOfTheSamePorts: sockets that differ in their addresses only are not
// taken for each other.
func TestTCPPeerOfTheSamePorts(t *testing.T) {
	l := listenOn(t, "tcp4", "0.0.0.0:0")
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(l.port()))
	own, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ownEnd := l.next()
	port := own.LocalAddr().(*net.TCPAddr).Port
	testuser.Dial(t, testuser.Stranger, net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: port}}, "tcp", addr)
	theirs := l.next()
	if uid, err := PeerUID(ownEnd); uid != os.Geteuid() || err != nil {
		t.Errorf("own: %d, %v", uid, err)
	}
	if uid, err := PeerUID(theirs); uid != testuser.Stranger || err != nil {
		t.Errorf("another user's: %d, %v", uid, err)
	}
}

// TestUnknownIsNotAllowed: whom nobody can name has no right, and a peer on another
// machine only what the password gives.
func TestUnknownIsNotAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		uid      int
		err      error
		password string
		ok       bool
	}{
		"own user":                    {os.Geteuid(), nil, "", true},
		"root":                        {0, nil, "", true},
		"listed":                      {4711, nil, "", true},
		"another":                     {4712, nil, "", false},
		"another, with a password":    {4712, nil, "x", false},
		"another machine":             {UnknownUID, nil, "", false},
		"another machine, a password": {UnknownUID, nil, "x", true},
		"unproven":                    {UnknownUID, ErrUnproven, "", false},
		"unproven, with a password":   {UnknownUID, ErrUnproven, "x", false},
		"user 0, and an error":        {0, ErrUnproven, "", false},
	} {
		if err := Allowed(c.uid, c.err, []int{4711}, c.password != ""); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSource: users of one address count apart, and addresses of one IPv6
// network are not.
func TestSource(t *testing.T) {
	for _, c := range []struct {
		uid  int
		ip   string
		want string
	}{
		{1000, "127.0.0.1", "uid 1000"}, {UnknownUID, "10.1.2.3", "10.1.2.3"}, {UnknownUID, "::ffff:10.1.2.3", "10.1.2.3"},
		{UnknownUID, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"}, {UnknownUID, "", "unknown"},
	} {
		if got := Source(c.uid, net.ParseIP(c.ip)); got != c.want {
			t.Errorf("%d %s: %q, want %q", c.uid, c.ip, got, c.want)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
