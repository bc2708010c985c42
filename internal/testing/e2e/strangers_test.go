package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testneed"
)

// outside is an address of this machine that is not loopback: whoever comes from
// there is anybody, to a rank.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	testneed.That(t, false, "an interface beside loopback", "ip link add dummy0 type dummy && ip addr add 192.0.2.2/24 dev dummy0")
	return ""
}

// memoryOf is the resident memory of a process that is no file, in bytes.
func memoryOf(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no RssAnon")
	return 0
}

// Whatever strangers do who lack the password, the rank's owner is served, no
// block of theirs is lost, and memory stays bounded.
func TestStrangersWithoutThePassword(t *testing.T) {
	const secret = "s3cret"
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur < 6000 {
		t.Skipf("%d descriptors are too few: ulimit -n 6000", l.Cur)
	}
	ip := outside(t)
	_, port, err := net.SplitHostPort(freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort(ip, port)
	r := launch(t, newPlace(t, "64MiB"), "--listen", at, "--password-file", file)
	r.untilSays(t, "listening", "network=tcp")
	owner := func() *resp.Client {
		c := r.dial(t)
		if _, err := c.Do("AUTH", secret); err != nil {
			t.Fatalf("AUTH of the owner: %v", err)
		}
		return c
	}
	c := owner()
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 40_000) }
	for i := range 400 {
		if err := c.Set(fmt.Sprint("k", i), block(i)); err != nil {
			t.Fatal(err)
		}
	}
	before := memoryOf(t, r.cmd.Process.Pid)
	for _, abuse := range []struct {
		name  string
		conns int
		text  []byte
	}{
		{"junk that is never read", 1060, bytes.Repeat([]byte("yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n"), 20_000)},
		{"half a command", 300, append([]byte("*2\r\n$3\r\nDEL\r\n$4190000\r\n"), make([]byte, 4_000_000)...)},
		{"values that are announced", 4, []byte("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$65011712\r\n")},
		{"nothing", 4200, nil},
	} {
		t.Run(abuse.name, func(t *testing.T) {
			var all sync.WaitGroup
			conns := make(chan net.Conn, abuse.conns)
			for range 32 {
				all.Go(func() {
					for range (abuse.conns + 31) / 32 {
						c, err := net.DialTimeout("tcp", at, patience)
						if err != nil {
							continue // it is refused: that is allowed
						}
						_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
						_, _ = c.Write(abuse.text)
						select {
						case conns <- c:
						default:
							c.Close()
						}
					}
				})
			}
			all.Wait()
			defer func() {
				close(conns)
				for c := range conns {
					c.Close()
				}
			}()
			began := time.Now()
			c := owner()
			if err := c.Set("mine", []byte("value")); err != nil {
				t.Errorf("SET of the owner: %v", err)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("the owner waited %v", took)
			}
			if grown := memoryOf(t, r.cmd.Process.Pid) - before; grown > 300<<20 {
				t.Errorf("memory grew by %d bytes", grown)
			}
		})
	}
	buf := make([]byte, 200_000)
	for i := range 400 {
		if n, err := c.Get(fmt.Sprint("k", i), buf); err != nil || !bytes.Equal(buf[:n], block(i)) {
			t.Fatalf("block %d: %d bytes, %v", i, n, err)
		}
	}
}
