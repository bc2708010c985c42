package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// lookupTimeout bounds the look-up of a name at the start.
const lookupTimeout = 5 * time.Second

// ErrInterface says that an interface was asked for which is not here, or has no address
// for other nodes.
var ErrInterface = errors.New("no such interface")

// Wish is what is asked of an address.
type Wish struct {
	// Listen is host:port of a listener. The host may be a name, an address, or an
	// interface; none stands for one address of the node, and 0.0.0.0 or [::] for all.
	Listen string

	// Advertise is the host that others are to use, or an interface; "" for that of Listen.
	Advertise string

	// Interface names where Listen has no host, or all of them, and Advertise none: interfaces,
	// patterns such as hsn*, or networks such as 10.1.0.0/16, with commas between them. The first
	// that the node has counts.
	Interface string
}

// Place is where a listener for other ranks is.
type Place struct {
	Bind   string // host:port to listen at
	Public string // the host that others are to use instead of that of Bind; "" if they can use it
	Why    string // that address, for whoever wonders
}

// Host is the one that others use.
func (p Place) Host() string {
	if p.Public != "" {
		return p.Public
	}
	host, _, _ := net.SplitHostPort(p.Bind) // it was joined here
	return host
}

// ListenAt finds the place of a listener for other ranks. So that no other network of the
// node has it, it is one address unless all are asked for. Errors: ErrInterface.
func (n Network) ListenAt(ctx context.Context, w Wish) (p Place, err error) {
	host, port, err := net.SplitHostPort(w.Listen)
	if err != nil {
		return p, fmt.Errorf("%q is not host:port; an IPv6 address stands in brackets, as in [2001:db8::7]:7946: %w", w.Listen, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	advertise := strings.TrimSuffix(strings.TrimPrefix(w.Advertise, "["), "]")
	if p.Public, err = n.interfaceAddress(advertise); err != nil {
		return p, err
	}
	ip, _ := netip.ParseAddr(host)
	all := ip.IsValid() && ip.IsUnspecified()
	switch {
	case host != "" && !all:
		p.Why = host + " was asked for"
		host, err = n.interfaceAddress(host)
	case p.Public != "":
		p.Why = w.Advertise + " is advertised"
		if !all {
			host = n.own(ctx, p.Public).String()
		}
	default:
		var one netip.Addr
		if one, p.Why, err = n.choose(ctx, w.Interface); all {
			p.Public = one.String()
		} else {
			host = one.String()
		}
	}
	p.Bind = net.JoinHostPort(host, port)
	return p, err
}

// choose returns an address of this node for other ranks, and why it is that one.
func (n Network) choose(ctx context.Context, wanted string) (netip.Addr, string, error) {
	if wanted != "" {
		return n.wanted(wanted)
	}
	for _, pattern := range highSpeed {
		if ip, i, ok := n.match(pattern); ok {
			return ip, fmt.Sprintf("%s is of the high-speed network%s", i.name, i.linkText()), nil
		}
	}
	usual, byName := n.usual(ctx)
	ip, at := usual, n.holder(usual)
	for _, i := range n.interfaces {
		if fast, ok := best(i.addrs); ok && i.speed > at.speed && at.speed > 0 {
			ip, at = fast, i
		}
	}
	switch {
	case ip.IsLoopback():
		return ip, "no interface has an address that other nodes can use", nil
	case byName && ip == usual:
		return ip, fmt.Sprintf("%s has the address of the node's name, %s%s", at.name, n.name, at.linkText()), nil
	case byName:
		return ip, fmt.Sprintf("%s is faster than the interface of the node's name%s", at.name, at.linkText()), nil
	}
	return ip, fmt.Sprintf("%s is the first interface, or the fastest%s", at.name, at.linkText()), nil
}

// highSpeed are the names that networks for jobs have on clusters: Slingshot's first, then InfiniBand's.
var highSpeed = []string{"hsn*", "ib*"}

// wanted is the first address of a list of interfaces and networks.
func (n Network) wanted(list string) (netip.Addr, string, error) {
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if prefix, err := netip.ParsePrefix(word); err == nil {
			if ip, i, ok := n.in(prefix); ok {
				return ip, fmt.Sprintf("%s has an address in %s", i.name, word), nil
			}
			continue
		}
		if ip, i, ok := n.match(word); ok {
			return ip, i.name + " was asked for", nil
		}
	}
	return netip.Addr{}, "", fmt.Errorf("%w, and with an address that other nodes can use, as %s; there are: %s", ErrInterface, list, n.usable())
}

// interfaceAddress is the address of the interface that host names, and host
// itself if there is none of that name.
func (n Network) interfaceAddress(host string) (string, error) {
	at := slices.IndexFunc(n.interfaces, func(i netInterface) bool { return i.name == host })
	if at < 0 {
		return host, nil
	}
	if ip, ok := n.interfaces[at].address(); ok {
		return ip.String(), nil
	}
	return "", fmt.Errorf("%w: %s has no address that other nodes can use; there are: %s", ErrInterface, host, n.usable())
}

// usable lists the interfaces that have an address others can use.
func (n Network) usable() string {
	var names []string
	for _, i := range n.interfaces {
		if ip, ok := best(i.addrs); ok {
			names = append(names, fmt.Sprintf("%s (%v)", i.name, ip))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// own is the address of this node that host stands for, loopback too, for it was meant; if it stands for none,
// the usual one.
func (n Network) own(ctx context.Context, host string) netip.Addr {
	if ip, ok := n.named(ctx, host); ok {
		return ip
	}
	ip, _ := n.usual(ctx)
	return ip
}

// usual is the address of the node's name, or else the first of its interfaces, and loopback for want of any. A name
// may stand for an address that only the node itself can use, as distributions like to set it up, or for one of a
// router before it: these are passed over.
func (n Network) usual(ctx context.Context) (ip netip.Addr, byName bool) {
	if ip, ok := n.named(ctx, n.name); ok && ip.IsGlobalUnicast() {
		return ip, true
	}
	var here []netip.Addr
	for _, i := range n.interfaces {
		here = append(here, i.addrs...)
	}
	if ip, ok := best(here); ok {
		return ip, false
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1}), false
}

// named is the address of this node that a name stands for.
func (n Network) named(ctx context.Context, name string) (netip.Addr, bool) {
	if name == "" {
		return netip.Addr{}, false
	}
	addrs, _ := n.lookup(ctx, name) // without an answer there is none
	addrs = slices.DeleteFunc(addrs, func(ip netip.Addr) bool { return n.holder(ip.Unmap()).name == "" })
	if ip, ok := best(addrs); ok || len(addrs) == 0 {
		return ip, ok
	}
	return addrs[0].Unmap(), true
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
