package nodeaddr

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// lookupTimeout bounds the look-up of a name at the start.
const lookupTimeout = 5 * time.Second

// Network is what this node is reached at.
type Network struct {
	name       string // the node's
	interfaces []netInterface
	lookup     func(ctx context.Context, host string) ([]netip.Addr, error)
}

type netInterface struct {
	name  string
	addrs []netip.Addr
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
		one := netInterface{name: i.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.addrs = append(one.addrs, p.Addr())
			}
		}
		n.interfaces = append(n.interfaces, one)
	}
	return n
}

// ListenAt resolves the address of a listener for other ranks, host:port, and
// what others are to use instead of it, "" if they can use it as it is. The host
// may be a name, an address, or an interface; none stands for one address of the
// node, that of advertise or of the node's name, so that no other network of the
// node has the listener. All of them is 0.0.0.0 or [::].
func (n Network) ListenAt(ctx context.Context, listen, advertise string) (bind, public string, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", "", fmt.Errorf("%q is not host:port: %w", listen, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if public, err = n.interfaceAddress(advertise); err != nil {
		return "", "", err
	}
	ip, _ := netip.ParseAddr(host)
	switch {
	case host == "":
		host = n.own(ctx, public).String()
	case ip.IsValid() && ip.IsUnspecified():
		if public == "" {
			public = n.own(ctx, "").String()
		}
	default:
		if host, err = n.interfaceAddress(host); err != nil {
			return "", "", err
		}
	}
	return net.JoinHostPort(host, port), public, nil
}

// interfaceAddress is the address of the interface that host names, and host
// itself if there is none of that name.
func (n Network) interfaceAddress(host string) (string, error) {
	at := slices.IndexFunc(n.interfaces, func(i netInterface) bool { return i.name == host })
	if at < 0 {
		return host, nil
	}
	if ip, ok := best(n.interfaces[at].addrs); ok {
		return ip.String(), nil
	}
	for _, ip := range n.interfaces[at].addrs {
		if ip.IsLoopback() { // who names it means it
			return ip.String(), nil
		}
	}
	return "", fmt.Errorf("interface %s has no address that other nodes can use; the interfaces that have one: %s", host, n.usable())
}

// usable lists the interfaces that have an address others can use.
func (n Network) usable() string {
	var names []string
	for _, i := range n.interfaces {
		if _, ok := best(i.addrs); ok {
			names = append(names, i.name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// own is the address of this node that host stands for, or the node's name, or
// the first of its interfaces, and loopback for want of any. A name may stand
// for an address that only the node itself can use, as distributions like to set
// it up, or for one of a router before it: these are passed over.
func (n Network) own(ctx context.Context, host string) netip.Addr {
	var here []netip.Addr
	for _, i := range n.interfaces {
		here = append(here, i.addrs...)
	}
	for _, name := range []string{host, n.name} {
		if name == "" {
			continue
		}
		addrs, _ := n.lookup(ctx, name) // without an answer there is the next
		addrs = slices.DeleteFunc(addrs, func(ip netip.Addr) bool { return !slices.Contains(here, ip.Unmap()) })
		if ip, ok := best(addrs); ok {
			return ip
		}
		if name == host && len(addrs) > 0 {
			return addrs[0].Unmap() // loopback, and so meant
		}
	}
	if ip, ok := best(here); ok {
		return ip
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// best is the first address that other nodes can use, of version 4 if there is one.
func best(addrs []netip.Addr) (netip.Addr, bool) {
	var found netip.Addr
	for _, ip := range addrs {
		if ip = ip.Unmap(); !ip.IsGlobalUnicast() || found.IsValid() && !ip.Is4() {
			continue
		}
		if ip.Is4() {
			return ip, true
		}
		found = ip
	}
	return found, found.IsValid()
}
