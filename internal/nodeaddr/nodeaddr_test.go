package nodeaddr

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestListenAt: a listener for other ranks has one address, or those that were
// asked for, and others learn one that they can use.
func TestListenAt(t *testing.T) {
	names := map[string]string{
		"node7": "10.0.0.7", "debian": "127.0.1.1", "six": "2001:db8::7", "both": "2001:db8::7 10.1.0.7",
		"router": "192.0.2.1", "here": "127.0.0.1", "ib": "10.1.0.7",
	}
	interfaces := []netInterface{
		{"lo", []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}},
		{"eth0", []netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("10.0.0.7")}},
		{"ib0", []netip.Addr{netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("10.1.0.7")}},
		{"down0", []netip.Addr{netip.MustParseAddr("fe80::2")}},
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
		{"node7", ":7946", "ib", "10.1.0.7:7946", "ib"},
		{"node7", ":0", "10.1.0.7", "10.1.0.7:0", "10.1.0.7"},
		{"node7", ":0", "ib0", "10.1.0.7:0", "10.1.0.7"},
		{"node7", ":0", "router", "10.0.0.7:0", "router"}, // it passes on what it gets
		{"node7", ":0", "here", "127.0.0.1:0", "here"},
		{"node7", ":0", "unknown", "10.0.0.7:0", "unknown"},
		{"debian", ":0", "", "10.0.0.7:0", ""},
		{"router", ":0", "", "10.0.0.7:0", ""},
		{"unknown", ":0", "", "10.0.0.7:0", ""},
		{"", ":0", "", "10.0.0.7:0", ""},
		{"six", ":0", "", "[2001:db8::7]:0", ""},
		{"both", ":0", "", "10.1.0.7:0", ""},
		{"node7", "ib0:7946", "", "10.1.0.7:7946", ""},
		{"node7", "ib0:0", "node7", "10.1.0.7:0", "node7"},
		{"node7", "lo:0", "", "127.0.0.1:0", ""},
		{"node7", "node8:0", "", "node8:0", ""},
		{"node7", "127.0.0.1:0", "", "127.0.0.1:0", ""},
		{"node7", "0.0.0.0:0", "", "0.0.0.0:0", "10.0.0.7"},
		{"node7", "[::]:7946", "", "[::]:7946", "10.0.0.7"},
		{"node7", "0.0.0.0:0", "ib0", "0.0.0.0:0", "10.1.0.7"},
	} {
		n := Network{name: c.name, interfaces: interfaces, lookup: lookup}
		bind, public, err := n.ListenAt(t.Context(), c.listen, c.advertise)
		if bind != c.bind || public != c.public || err != nil {
			t.Errorf("%q on %q, advertised as %q: %q, %q, %v; want %q, %q", c.listen, c.name, c.advertise, bind, public, err, c.bind, c.public)
		}
	}
	n := Network{name: "node7", interfaces: interfaces, lookup: lookup}
	for _, bad := range [][2]string{{"down0:0", ""}, {":0", "down0"}, {"7946", ""}} {
		if bind, _, err := n.ListenAt(t.Context(), bad[0], bad[1]); err == nil {
			t.Errorf("%q gave %s", bad, bind)
		}
	}
	if _, _, err := n.ListenAt(t.Context(), "down0:0", ""); err == nil || !strings.Contains(err.Error(), "eth0, ib0") {
		t.Errorf("the error names no interface to use: %v", err)
	}
	alone := Network{lookup: lookup}
	if bind, _, err := alone.ListenAt(t.Context(), ":0", ""); bind != "127.0.0.1:0" || err != nil {
		t.Errorf("without interfaces: %q, %v", bind, err)
	}
}

// TestThisNode: the node that the test runs on has an address that it can listen on.
func TestThisNode(t *testing.T) {
	bind, _, err := This().ListenAt(t.Context(), ":0", "")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", bind)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
