package nodeaddr

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Network is what this node is reached at.
type Network struct {
	name       string // the node's
	interfaces []netInterface
	lookup     func(ctx context.Context, host string) ([]netip.Addr, error)
}

type netInterface struct {
	name  string
	addrs []netip.Addr
	speed int // of the link of a network card, in Mb/s; 0: unknown, or no card
}

// This returns the interfaces of this node that are up. Without an answer of
// the kernel there are none.
func This() Network {
	n := Network{lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}}
	n.name, _ = os.Hostname() // without a name there are the interfaces
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		one := netInterface{name: i.Name, speed: linkSpeed("/sys/class/net", i.Name)}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.addrs = append(one.addrs, p.Addr())
			}
		}
		n.interfaces = append(n.interfaces, one)
	}
	return n
}

// linkSpeed reads the speed of a link. Interfaces without a card, bonds of cards
// excepted, claim any: a bridge of containers is no faster than the card below it.
func linkSpeed(dir, name string) int {
	card := false
	for _, mark := range []string{"device", "bonding"} {
		_, err := os.Stat(filepath.Join(dir, name, mark))
		card = card || err == nil
	}
	text, err := os.ReadFile(filepath.Join(dir, name, "speed"))
	if err != nil || !card {
		return 0
	}
	speed, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return max(speed, 0) // -1: the card does not say
}

func (i netInterface) linkText() string {
	if i.speed == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d Mb/s)", i.speed)
}

// address is that of an interface that somebody named, who may mean loopback.
func (i netInterface) address() (netip.Addr, bool) {
	if ip, ok := best(i.addrs); ok {
		return ip, true
	}
	at := slices.IndexFunc(i.addrs, netip.Addr.IsLoopback)
	if at < 0 {
		return netip.Addr{}, false
	}
	return i.addrs[at], true
}

// match is the address of the fastest interface with a name of that pattern, of
// several the one with the first name.
func (n Network) match(pattern string) (netip.Addr, netInterface, bool) {
	var found []netInterface
	for _, i := range n.interfaces {
		if ok, err := path.Match(pattern, i.name); err != nil || !ok {
			continue
		}
		if ip, ok := i.address(); ok && (!ip.IsLoopback() || i.name == pattern) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return netip.Addr{}, netInterface{}, false
	}
	one := slices.MinFunc(found, func(a, b netInterface) int {
		return cmp.Or(cmp.Compare(b.speed, a.speed), cmp.Compare(a.name, b.name))
	})
	ip, _ := one.address()
	return ip, one, true
}

// in is the first address in a network: one of loopback, which may be meant, if there is no
// other that nodes can use.
func (n Network) in(prefix netip.Prefix) (found netip.Addr, at netInterface, ok bool) {
	for _, i := range n.interfaces {
		for _, ip := range i.addrs {
			ip = ip.Unmap()
			switch {
			case !prefix.Contains(ip):
			case ip.IsGlobalUnicast():
				return ip, i, true
			case ip.IsLoopback() && !ok:
				found, at, ok = ip, i, true
			}
		}
	}
	return found, at, ok
}

// holder is the interface that has an address; one without a name if none has.
func (n Network) holder(ip netip.Addr) netInterface {
	at := slices.IndexFunc(n.interfaces, func(i netInterface) bool {
		return slices.ContainsFunc(i.addrs, func(a netip.Addr) bool { return a.Unmap() == ip })
	})
	if at < 0 {
		return netInterface{}
	}
	return n.interfaces[at]
}
