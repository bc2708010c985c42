package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// cables are two network namespaces that veth pairs join.
type cables struct {
	t  *testing.T
	of [2]string
}

// newCables makes them: for each interface its name and its network, in which the two
// ends have the addresses 1 and 2.
func newCables(t *testing.T, interfaces ...[2]string) *cables {
	t.Helper()
	needNamespaces(t)
	c := &cables{t: t}
	for i := range c.of {
		c.of[i] = fmt.Sprintf("cascade-cable-%d-%d", os.Getpid(), i)
		out, err := exec.Command("ip", "netns", "add", c.of[i]).CombinedOutput()
		testneed.That(t, err == nil, "the right to make network namespaces", "run this test where "+strings.TrimSpace(string(out))+" does not happen")
		t.Cleanup(func() { c.run("ip", "netns", "del", c.of[i]) })
		c.run("ip", "-n", c.of[i], "link", "set", "lo", "up")
	}
	for _, one := range interfaces {
		name, network := one[0], netip.MustParsePrefix(one[1])
		c.run("ip", "-n", c.of[0], "link", "add", name, "type", "veth", "peer", "name", name, "netns", c.of[1])
		at := network.Addr()
		for _, ns := range c.of {
			at = at.Next()
			line := []string{"ip", "-n", ns, "addr", "add", netip.PrefixFrom(at, network.Bits()).String(), "dev", name}
			if at.Is6() {
				line = append(line, "nodad")
			}
			c.run(line...)
			c.run("ip", "-n", ns, "link", "set", name, "up")
		}
	}
	return c
}

func (c *cables) run(line ...string) string {
	c.t.Helper()
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		c.t.Errorf("%v: %v: %s", line, err, out)
	}
	return string(out)
}

// within begins a command line in a namespace.
func (c *cables) within(i int) []string { return []string{"ip", "netns", "exec", c.of[i]} }

// start starts a rank in each namespace with these flags, and waits until what one puts the
// other reads, both ways. seed: gossip of the first; "" for where it says it is.
func (c *cables) start(flags ...string) *job {
	c.t.Helper()
	j := newJob(c.t, "16MiB", false)
	for i := range c.of {
		j.within = c.within(i)
		j.add(i, append([]string{"--peers-listen", ":0", "--peers-gossip", ":0", "--peers-seeds", j.seed}, flags...)...)
	}
	j.agree(2)
	for i, client := range j.clients() {
		m := marks{fmt.Sprint("of-", i), 8}
		m.put(c.t, client)
		m.everywhere(c.t, j.clients()...)
	}
	return j
}

// addresses are those of a rank's fabric and gossip, and why they were chosen.
func (c *cables) addresses(r *rank) (fabric, gossip netip.AddrPort, line string) {
	c.t.Helper()
	for line := range strings.Lines(r.stderr.String()) {
		found := joinedAddr.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		// A value with an = or a space would be quoted in the log; brackets are not.
		fabric, err := netip.ParseAddrPort(strings.Trim(found[1], `"`))
		if err == nil {
			gossip, err = netip.ParseAddrPort(strings.Trim(found[2], `"`))
		}
		if err != nil {
			c.t.Fatalf("%v in %s", err, line)
		}
		return fabric, gossip, line
	}
	c.t.Fatal("no line says what it listens on")
	return
}

// doctor is what the doctor says in a namespace of the fabric's address.
func (c *cables) doctor(i int, r *rank) string {
	c.t.Helper()
	line := append(c.within(i), program("cascade"), "doctor", "--json", "--socket", r.socket)
	_, out, _ := finish(c.t, line[0], line[1:]...)
	var report struct {
		Checks []struct{ Name, Verdict, Detail, Remedy string } `json:"checks"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		c.t.Fatalf("%v in %s", err, tailOf(out))
	}
	for _, check := range report.Checks {
		if check.Name == "fabric address" {
			return check.Verdict + ": " + check.Detail
		}
	}
	c.t.Fatalf("nothing of the fabric in %s", tailOf(out))
	return ""
}

// TestOnlyIPv6: ranks find each other on a network without IPv4, by default and at addresses
// in brackets.
func TestOnlyIPv6(t *testing.T) {
	c := newCables(t, [2]string{"eth0", "fd00:77::/64"})
	for name, flags := range map[string][]string{
		"by default":         nil,
		"all addresses":      {"--peers-listen", "[::]:0", "--peers-gossip", "[::]:0"},
		"a network":          {"--peers-interface", "10.0.0.0/8,fd00:77::/64"},
		"an interface":       {"--peers-listen", "eth0:0", "--peers-gossip", "eth0:0"},
		"an interface, said": {"--peers-listen", "[::]:0", "--peers-gossip", "[::]:0", "--peers-advertise", "eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			own := *c
			own.t = t
			j := own.start(flags...)
			for i, r := range j.ranks {
				fabric, gossip, line := own.addresses(r)
				if want := netip.MustParseAddr(fmt.Sprint("fd00:77::", i+1)); fabric.Addr() != want || gossip.Addr() != want {
					t.Errorf("rank %d is at %s", i, line)
				}
				if !strings.HasPrefix(j.seed, "[fd00:77::1]:") {
					t.Errorf("the seed is %s", j.seed)
				}
				if said := own.doctor(i, r); !strings.HasPrefix(said, "ok: fd00:77::") {
					t.Errorf("doctor says %s", said)
				}
			}
		})
	}
	t.Run("given addresses", func(t *testing.T) {
		j := newJob(t, "16MiB", false)
		j.seed = "[fd00:77::1]:7946"
		for i := range c.of {
			host := fmt.Sprintf("[fd00:77::%d]", i+1)
			j.within = c.within(i)
			j.add(i, "--peers-listen", host+":7950", "--peers-gossip", host+":7946", "--peers-advertise", host)
		}
		j.agree(2)
	})
}

// TestTwoInterfaces: the high-speed network comes first, what is asked for before it, and the
// doctor says why.
func TestTwoInterfaces(t *testing.T) {
	c := newCables(t, [2]string{"eth0", "10.78.0.0/24"}, [2]string{"hsn0", "10.79.0.0/24"})
	for name, tc := range map[string]struct {
		flags     []string
		want, why string
	}{
		"by default":    {nil, "10.79.0.", "high-speed"},
		"by name":       {[]string{"--peers-interface", "eth0"}, "10.78.0.", "eth0 was asked for"},
		"by network":    {[]string{"--peers-interface", "192.0.2.0/24,10.78.0.0/16"}, "10.78.0.", "10.78.0.0/16"},
		"as it listens": {[]string{"--peers-listen", "eth0:0", "--peers-gossip", "eth0:0"}, "10.78.0.", "eth0 was asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			own := *c
			own.t = t
			j := own.start(tc.flags...)
			for i, r := range j.ranks {
				fabric, gossip, line := own.addresses(r)
				want := netip.MustParseAddr(tc.want + strconv.Itoa(i+1))
				if fabric.Addr() != want || gossip.Addr() != want || !strings.Contains(line, tc.why) {
					t.Errorf("rank %d is at %s; want %v, for %q", i, line, want, tc.why)
				}
				if said := own.doctor(i, r); !strings.HasPrefix(said, "ok: "+want.String()) || !strings.Contains(said, tc.why) {
					t.Errorf("doctor says %s", said)
				}
			}
		})
	}
	p := newPlace(t, "16MiB")
	r := launchWithin(t, c.within(0), p, newJob(t, "16MiB", false).flags(0, "--peers-listen", ":0", "--peers-interface", "ib9")...)
	until(t, "the end of a rank that asks for an interface that is not there", func() bool { return over(r) })
	if said := r.stderr.String(); !strings.Contains(said, "ib9") || !strings.Contains(said, "hsn0 (10.79.0.1)") {
		t.Errorf("it says %s", said)
	}
}

// TestFirewallOpensRange: ranks with peers.ports use only those ports, which is all that a
// firewall between them lets through; when none is free, an error says so.
func TestFirewallOpensRange(t *testing.T) {
	nft := testneed.Program(t, "nft", "make tools, or install nftables")
	c := newCables(t, [2]string{"eth0", "10.80.0.0/24"})
	const first, last = 20000, 20003
	for i := range c.of {
		c.run(append(c.within(i), nft, fmt.Sprintf(`add table inet cascade
			add chain inet cascade in { type filter hook input priority 0; policy drop; }
			add rule inet cascade in iif lo accept
			add rule inet cascade in ct state established,related accept
			add rule inet cascade in meta l4proto { tcp, udp } th dport %d-%d accept
			add rule inet cascade in counter drop`, first, last))...)
	}
	j := c.start("--peers-ports", fmt.Sprintf("%d-%d", first, last))
	for i, r := range j.ranks {
		fabric, gossip, line := c.addresses(r)
		if fabric.Port() != first || gossip.Port() != last {
			t.Errorf("rank %d is at %s", i, line)
		}
		if said := c.doctor(i, r); !strings.HasPrefix(said, "ok: ") || !strings.Contains(said, "ports 20000-20003") {
			t.Errorf("doctor says %s", said)
		}
		for _, file := range []string{"tcp", "udp"} {
			if n := len(boundTo(t, r.cmd.Process.Pid, strconv.Itoa(last), file)); n != 1 {
				t.Errorf("%d sockets of %s on %d", n, file, last)
			}
		}
	}
	// The firewall is one: a port beside the range is not reached from the other side.
	dial := append(c.within(1), "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/10.80.0.1/20004")
	if err := exec.Command(dial[0], dial[1:]...).Run(); err == nil {
		t.Error("a port outside of the range answers")
	}
	if rules := c.run(append(c.within(0), nft, "list", "chain", "inet", "cascade", "in")...); strings.Contains(rules, "counter packets 0 ") {
		t.Errorf("the firewall dropped nothing: %s", rules)
	}
	// Two more ranks on the first node find one pair of ports, and then none.
	j.within = c.within(0)
	j.add(2, "--peers-listen", ":0", "--peers-gossip", ":0", "--peers-ports", "20000-20003", "--peers-seeds", j.seed)
	j.agree(3)
	p := newPlace(t, "16MiB")
	r := launchWithin(t, j.within, p, j.flags(3, "--peers-listen", ":0", "--peers-gossip", ":0", "--peers-ports", "20000-20003")...)
	until(t, "the end of a rank without a port", func() bool { return over(r) })
	if said := r.stderr.String(); !strings.Contains(said, "peers.ports") || !strings.Contains(said, "20000-20003") {
		t.Errorf("it says %s", said)
	}
}

func over(r *rank) bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}
