package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/units"
)

// TestListenAt: a listener for other ranks has one address, or those that were
// asked for, and others learn one that they can use.
func TestListenAt(t *testing.T) {
	names := map[string]string{
		"node7": "10.0.0.7", "debian": "127.0.1.1", "six": "2001:db8::7", "both": "2001:db8::7 10.1.0.7",
		"router": "192.0.2.1", "here": "127.0.0.1", "fast": "10.1.0.7",
	}
	interfaces := []netInterface{
		{"lo", []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, 0},
		{"eth0", []netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("10.0.0.7")}, 0},
		{"fast0", []netip.Addr{netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("10.1.0.7")}, 0},
		{"down0", []netip.Addr{netip.MustParseAddr("fe80::2")}, 0},
	}
	lookup := func(_ context.Context, host string) (addrs []netip.Addr, err error) {
		for text := range strings.FieldsSeq(names[host]) {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		if ip, bad := netip.ParseAddr(host); bad == nil {
			addrs = []netip.Addr{ip}
		}
		if len(addrs) == 0 {
			err = errors.New("no such host")
		}
		return addrs, err
	}
	for _, c := range []struct {
		name, listen, advertise string
		bind, public            string
	}{
		{"node7", ":0", "", "10.0.0.7:0", ""},
		{"node7", ":7946", "fast", "10.1.0.7:7946", "fast"},
		{"node7", ":0", "10.1.0.7", "10.1.0.7:0", "10.1.0.7"},
		{"node7", ":0", "fast0", "10.1.0.7:0", "10.1.0.7"},
		{"node7", ":0", "router", "10.0.0.7:0", "router"}, // it passes on what it gets
		{"node7", ":0", "here", "127.0.0.1:0", "here"},
		{"node7", ":0", "unknown", "10.0.0.7:0", "unknown"},
		{"debian", ":0", "", "10.0.0.7:0", ""},
		{"router", ":0", "", "10.0.0.7:0", ""},
		{"unknown", ":0", "", "10.0.0.7:0", ""},
		{"", ":0", "", "10.0.0.7:0", ""},
		{"six", ":0", "", "[2001:db8::7]:0", ""},
		{"both", ":0", "", "10.1.0.7:0", ""},
		{"node7", "fast0:7946", "", "10.1.0.7:7946", ""},
		{"node7", "fast0:0", "node7", "10.1.0.7:0", "node7"},
		{"node7", "lo:0", "", "127.0.0.1:0", ""},
		{"node7", "node8:0", "", "node8:0", ""},
		{"node7", "127.0.0.1:0", "", "127.0.0.1:0", ""},
		{"node7", "0.0.0.0:0", "", "0.0.0.0:0", "10.0.0.7"},
		{"node7", "[::]:7946", "", "[::]:7946", "10.0.0.7"},
		{"node7", "[2001:db8::7]:7946", "", "[2001:db8::7]:7946", ""},
		{"node7", "[::]:7946", "[2001:db8::7]", "[::]:7946", "2001:db8::7"},
		{"node7", "0.0.0.0:0", "fast0", "0.0.0.0:0", "10.1.0.7"},
	} {
		n := Network{name: c.name, interfaces: interfaces, lookup: lookup}
		p, err := n.ListenAt(t.Context(), Wish{Listen: c.listen, Advertise: c.advertise})
		if p.Bind != c.bind || p.Public != c.public || p.Why == "" || err != nil {
			t.Errorf("%q on %q, advertised as %q: %+v, %v; want %q, %q", c.listen, c.name, c.advertise, p, err, c.bind, c.public)
		}
	}
	n := Network{name: "node7", interfaces: interfaces, lookup: lookup}
	for _, bad := range [][2]string{{"down0:0", ""}, {":0", "down0"}, {"7946", ""}} {
		if p, err := n.ListenAt(t.Context(), Wish{Listen: bad[0], Advertise: bad[1]}); err == nil {
			t.Errorf("%q gave %+v", bad, p)
		}
	}
	if _, err := n.ListenAt(t.Context(), Wish{Listen: "down0:0"}); !errors.Is(err, ErrInterface) || !strings.Contains(err.Error(), "eth0 (10.0.0.7), fast0 (10.1.0.7)") {
		t.Errorf("the error names no interface to use: %v", err)
	}
	alone := Network{lookup: lookup}
	if p, err := alone.ListenAt(t.Context(), Wish{Listen: ":0"}); p.Bind != "127.0.0.1:0" || err != nil {
		t.Errorf("without interfaces: %+v, %v", p, err)
	}
}

// TestThisNode: the node that the test runs on has an address that it can listen on.
func TestThisNode(t *testing.T) {
	p, err := This().ListenAt(t.Context(), Wish{Listen: ":0"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", p.Bind)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestNameOfLoopback: a node whose name stands for loopback, as distributions like to set it up, has the address of
// its first interface, and says so.
func TestNameOfLoopback(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("127.0.1.1")}
	n := Network{name: "node7", lookup: func(context.Context, string) ([]netip.Addr, error) { return own, nil }, interfaces: []netInterface{
		{"lo", own, 0}, {"eth0", []netip.Addr{netip.MustParseAddr("10.0.0.7")}, 0},
	}}
	if p, err := n.ListenAt(t.Context(), Wish{Listen: ":0"}); p.Bind != "10.0.0.7:0" || !strings.Contains(p.Why, "first interface") || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestChoice: the high-speed network comes first, then the faster card, then the node's name;
// what is asked for comes before all of them.
func TestChoice(t *testing.T) {
	addr := func(texts ...string) (addrs []netip.Addr) {
		for _, text := range texts {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		return addrs
	}
	lo := netInterface{"lo", addr("127.0.0.1", "::1"), 0}
	eth := netInterface{"eth0", addr("10.0.0.7", "2001:db8::7"), 1000}
	fast := netInterface{"eth1", addr("10.1.0.7"), 100_000}
	docker := netInterface{"docker0", addr("172.17.0.1"), 0}
	ib0, ib1 := netInterface{"ib0", addr("10.2.0.7"), 200_000}, netInterface{"ib1", addr("10.2.1.7"), 400_000}
	hsn1, hsn0 := netInterface{"hsn1", addr("10.3.1.7"), 200_000}, netInterface{"hsn0", addr("10.3.0.7"), 200_000}
	bare := netInterface{"hsn2", addr("fe80::7"), 400_000}
	wifi := netInterface{"wifi0", addr("10.4.0.7"), 0}
	v6 := netInterface{"hsn0", addr("fe80::8", "2001:db8:3::7"), 0}
	for _, c := range []struct {
		name       string
		interfaces []netInterface
		wanted     string
		bind, why  string
	}{
		{"the node's name", []netInterface{lo, docker, eth}, "", "10.0.0.7:0", "node's name"},
		{"a faster card", []netInterface{lo, eth, fast, docker}, "", "10.1.0.7:0", "faster"},
		{"InfiniBand, its faster link", []netInterface{lo, eth, fast, ib0, ib1}, "", "10.2.1.7:0", "high-speed"},
		{"Slingshot", []netInterface{lo, eth, fast, ib0, hsn1, hsn0}, "", "10.3.0.7:0", "high-speed"},
		{"Slingshot without an address", []netInterface{lo, eth, bare}, "", "10.0.0.7:0", "node's name"},
		{"Slingshot of version 6", []netInterface{lo, eth, v6}, "", "[2001:db8:3::7]:0", "high-speed"},
		{"only a bridge", []netInterface{lo, docker}, "", "172.17.0.1:0", "first"},
		{"only loopback", []netInterface{lo}, "", "127.0.0.1:0", "no interface"},
		{"a name", []netInterface{lo, eth, hsn0}, "eth0", "10.0.0.7:0", "eth0 was asked for"},
		{"loopback, by name", []netInterface{lo, eth, hsn0}, "lo", "127.0.0.1:0", "lo was asked for"},
		{"a pattern", []netInterface{lo, eth, fast}, "eth*", "10.1.0.7:0", "eth1 was asked for"},
		{"a list", []netInterface{lo, eth, fast, ib0}, "hsn*, ib0", "10.2.0.7:0", "ib0 was asked for"},
		{"a network", []netInterface{lo, eth, fast, ib0}, "10.1.0.0/16", "10.1.0.7:0", "10.1.0.0/16"},
		{"all of version 4", []netInterface{lo, eth, fast}, "0.0.0.0/0", "10.0.0.7:0", "eth0"},
		{"all of version 6", []netInterface{lo, bare, eth}, "::/0", "[2001:db8::7]:0", "eth0"},
		{"loopback, by its network", []netInterface{lo, eth}, "127.0.0.0/8", "127.0.0.1:0", "127.0.0.0/8"},
		{"any name", []netInterface{lo, wifi}, "*", "10.4.0.7:0", "wifi0"},
		{"a network of version 6", []netInterface{lo, eth, fast}, "2001:db8::/32", "[2001:db8::7]:0", "2001:db8::/32"},
	} {
		n := Network{name: "node7", interfaces: c.interfaces, lookup: func(context.Context, string) ([]netip.Addr, error) { return addr("10.0.0.7"), nil }}
		p, err := n.ListenAt(t.Context(), Wish{Listen: ":0", Interface: c.wanted})
		if p.Bind != c.bind || p.Public != "" || !strings.Contains(p.Why, c.why) || err != nil {
			t.Errorf("%s: %+v, %v; want %s, for %q", c.name, p, err, c.bind, c.why)
		}
		if all, err := n.ListenAt(t.Context(), Wish{Listen: "[::]:0", Interface: c.wanted}); all.Bind != "[::]:0" || all.Host() != p.Host() || err != nil {
			t.Errorf("%s: others learn %+v, %v; want %s", c.name, all, err, p.Host())
		}
		for _, given := range []Wish{{Listen: "eth0:0", Interface: c.wanted}, {Listen: ":0", Advertise: "10.0.0.7", Interface: c.wanted}} {
			if n.holder(addr("10.0.0.7")[0]).name == "" {
				continue
			}
			if p, err := n.ListenAt(t.Context(), given); p.Bind != "10.0.0.7:0" || err != nil {
				t.Errorf("%s: %+v gave %+v, %v", c.name, given, p, err)
			}
		}
		if _, err := n.ListenAt(t.Context(), Wish{Listen: ":0", Interface: "hsn9,192.0.2.0/24"}); !errors.Is(err, ErrInterface) || !strings.Contains(err.Error(), n.usable()) {
			t.Errorf("%s: what is not there: %v", c.name, err)
		}
	}
}

// TestLinkSpeed: only cards and bonds of them have a speed that counts.
func TestLinkSpeed(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mark, speed string
		want        int
	}{
		"card": {"device", "200000\n", 200000}, "bond": {"bonding", "50000\n", 50000}, "bridge": {"bridge", "10000\n", 0},
		"silent": {"device", "-1\n", 0}, "broken": {"device", "fast", 0},
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(at, c.mark), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "speed"), []byte(c.speed), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := linkSpeed(dir, name); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := linkSpeed(dir, "absent"); got != 0 {
		t.Errorf("absent: %d", got)
	}
}

// TestEachPort: ports are taken from one end, those in use are passed over, and an error names
// the range when there is none.
func TestEachPort(t *testing.T) {
	ports, err := units.ParsePorts("20000-20003")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bind    string
		ports   units.Ports
		fromTop bool
		busy    int
		want    string
	}{
		"no range": {"[::1]:0", 0, false, 0, "[::1]:0"}, "a port": {"h:7946", ports, false, 0, "h:7946"}, "the lowest": {"h:0", ports, false, 0, "h:20000"},
		"the highest": {"h:0", ports, true, 0, "h:20003"}, "the next": {"[::1]:0", ports, false, 2, "[::1]:20002"}, "the one below": {"h:0", ports, true, 3, "h:20000"},
		"none": {"h:0", ports, false, 4, ""},
	} {
		got, tries := "", 0
		err := EachPort(c.bind, c.ports, c.fromTop, func(bind string) error {
			if tries++; tries <= c.busy {
				return fmt.Errorf("listen: %w", syscall.EADDRINUSE)
			}
			got = bind
			return nil
		})
		if got != c.want || errors.Is(err, ErrNoPort) != (c.want == "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	other := errors.New("another one")
	if err := EachPort("h:0", ports, false, func(string) error { return other }); !errors.Is(err, other) || errors.Is(err, ErrNoPort) {
		t.Errorf("another error became %v", err)
	}
}

// TestQuietPorts: the ports lie below those that connections get, wherever a system lets them begin.
func TestQuietPorts(t *testing.T) {
	for name, c := range map[string]struct {
		local       string
		first, last int // of all that may be chosen
	}{
		"usual": {"32768\t60999\n", 10_000, 32_767}, "narrow": {"10064 65535", 10_000, 10_063}, "none": {"10063 65535", 0, 0}, "all": {"1024\t65535", 0, 0},
		"nonsense": {"many", 0, 0}, "one": {"32768", 0, 0}, "too high": {"65537 65538", 0, 0}, "the highest": {"65536 65536", 10_000, 65_535},
	} {
		low := quietPorts(c.local, func(int) int { return 0 })
		high := quietPorts(c.local, func(n int) int { return n - 1 })
		if low.First() != c.first || high.Last() != c.last {
			t.Errorf("%s: %v to %v, want %d-%d", name, low, high, c.first, c.last)
		}
	}
}

// TestFreePort: a port is free for both protocols, and no connection gets it while nobody listens there yet.
func TestFreePort(t *testing.T) {
	local, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		port, err := FreePort(t.Context(), "127.0.0.1", 0)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(port)
		if quietPorts(string(local), func(int) int { return 0 }) != 0 && n >= quietPorts(string(local), func(n int) int { return n - 1 }).First()+64 {
			t.Errorf("connections may get port %d: the kernel gives away %s", n, local)
		}
		bind := net.JoinHostPort("127.0.0.1", port)
		tcp, err := net.Listen("tcp", bind)
		if err != nil {
			t.Fatal(err)
		}
		udp, uerr := net.ListenPacket("udp", bind)
		if uerr != nil {
			t.Fatal(uerr)
		}
		one, _ := units.ParsePorts(port)
		if got, err := FreePort(t.Context(), "127.0.0.1", one); !errors.Is(err, ErrNoPort) {
			t.Errorf("port %s was free while it is taken: %s, %v", port, got, err)
		}
		if err := tcp.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := FreePort(t.Context(), "127.0.0.1", one); !errors.Is(err, ErrNoPort) {
			t.Errorf("port %s was free while it is taken for UDP: %s, %v", port, got, err)
		}
		if err := udp.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := FreePort(t.Context(), "127.0.0.1", one); got != port || err != nil {
			t.Errorf("the one port %s is free: %s, %v", port, got, err)
		}
	}
}
