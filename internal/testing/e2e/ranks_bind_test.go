package e2e

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var joinedAddr = regexp.MustCompile(`msg=joined .*addr=(\S+) gossip=(\S+)`)

// TestBoundToOneInterface: without addresses in the configuration ranks find each
// other, and neither fabric nor gossip has a socket on every interface. With an
// interface, an address, or all of them, they have what was asked for.
func TestBoundToOneInterface(t *testing.T) {
	for name, c := range map[string]struct {
		host string
		want string // of the sockets, "" is one address that is no loopback's name
	}{
		"by default":      {"", ""},
		"an interface":    {"lo", "127.0.0.1"},
		"all, explicitly": {"0.0.0.0", "0.0.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "16MiB", false)
			for i := range 2 {
				j.add(i, "--peers-listen", c.host+":0", "--peers-gossip", c.host+":0")
			}
			j.agree(2)
			for _, r := range j.ranks {
				found := joinedAddr.FindStringSubmatch(r.stderr.String())
				if found == nil {
					t.Fatal("no line says what it listens on")
				}
				for i, public := range found[1:] {
					host, port, err := net.SplitHostPort(public)
					if err != nil || net.ParseIP(host) == nil || net.ParseIP(host).IsUnspecified() {
						t.Errorf("others are told %s", public)
					}
					files := []string{"tcp", "tcp6", "udp", "udp6"}[:2+2*i]
					bound := boundTo(t, r.cmd.Process.Pid, port, files...)
					if len(bound) != 1+i {
						t.Errorf("%v sockets on port %s, want %d", bound, port, 1+i)
					}
					for _, ip := range bound {
						if ip.IsUnspecified() != (c.want == "0.0.0.0") || c.want == "127.0.0.1" && !ip.IsLoopback() {
							t.Errorf("port %s is bound to %v", port, ip)
						}
					}
				}
			}
		})
	}
}

// boundTo lists the addresses of a process's network on which something listens
// on a port, from files of /proc/PID/net.
func boundTo(t *testing.T, pid int, port string, files ...string) (found []net.IP) {
	t.Helper()
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "net", name))
		if err != nil {
			continue // no such protocol on this machine
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != "0A" && f[3] != "07" { // listening, or UDP
				continue
			}
			host, hexPort, _ := strings.Cut(f[1], ":")
			var n int
			if _, err := fmt.Sscanf(hexPort, "%X", &n); err != nil || fmt.Sprint(n) != port {
				continue
			}
			b, err := hex.DecodeString(host)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i+4 <= len(b); i += 4 { // words of the machine's order
				b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
			}
			found = append(found, net.IP(b))
		}
	}
	return found
}
