package main

import (
	"net"
	"os"
)

// advertised is the host that others reach a listener of this rank at: what is
// configured, the listener's own, or for one that listens everywhere an address
// of the node. "" is for listeners that name a host.
func advertised(listen, configured string) string {
	if configured != "" {
		return configured
	}
	if host, _, err := net.SplitHostPort(listen); err != nil || host != "" {
		return ""
	}
	return nodeAddress()
}

// nodeAddress is the address that the node's name stands for, unless that is
// one that only the node itself can use, as distributions like to set it up;
// then the first of its interfaces that is up, and loopback for want of any.
func nodeAddress() string {
	var candidates []net.IP
	if name, err := os.Hostname(); err == nil {
		candidates, _ = net.LookupIP(name) // without an answer there are the interfaces
	}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				candidates = append(candidates, n.IP)
			}
		}
	}
	for _, ip := range candidates {
		if ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	for _, ip := range candidates {
		if ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	return "127.0.0.1"
}

// withPort0 is the form members want an advertised host in; port 0 stands for
// that of the listener.
func withPort0(host string) string {
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, "0")
}
