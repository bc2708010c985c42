package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/nodeaddr"
)

// networkPatience bounds what a check of the network waits for.
const networkPatience = 5 * time.Second

// fabric looks whether this node can be reached at the address that the fabric of the
// configuration comes to, from the node itself. A firewall between nodes it cannot see.
func (m Machine) fabric(c *config.Config) Check {
	const name = "fabric address"
	if c.Peers.Fabric == "off" {
		return Okay(name, "not needed: peers.fabric is off")
	}
	ctx, cancel := context.WithTimeout(context.Background(), networkPatience)
	defer cancel()
	const remedy = "name interfaces or networks of this node in peers.interface, or an address in peers.listen"
	place, err := nodeaddr.This().ListenAt(ctx, nodeaddr.Wish{Listen: c.Peers.Listen, Advertise: c.Peers.Advertise, Interface: c.Peers.Interface})
	if err != nil {
		return Failure(name, remedy, "%v", err)
	}
	host, _, err := net.SplitHostPort(place.Bind)
	if err == nil {
		err = nodeaddr.EachPort(net.JoinHostPort(host, "0"), c.Peers.Ports, false, func(bind string) error { return reach(ctx, bind, place.Host()) })
	}
	switch {
	case errors.Is(err, nodeaddr.ErrNoPort):
		return Failure(name, "widen peers.ports, or end what uses them", "%v", err)
	case err != nil:
		return Failure(name, remedy, "%v", err)
	}
	if ip, err := netip.ParseAddr(place.Host()); err == nil && ip.IsLoopback() {
		return Warning(name, "name an interface that other nodes reach in peers.listen or peers.interface", "%s: ranks on other nodes cannot reach it (%s)", place.Host(), place.Why)
	}
	ports := "any port: a firewall between nodes needs peers.ports"
	if c.Peers.Ports != 0 {
		ports = fmt.Sprintf("ports %v", c.Peers.Ports)
	}
	return Okay(name, "%s, which this node reaches: %s; %s; cascade status shows whether others reach it", place.Host(), place.Why, ports)
}

// reach listens at an address, and connects to it at the host that others use.
func reach(ctx context.Context, bind, public string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", bind)
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w", bind, err)
	}
	defer l.Close() // all that it was for is done
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(public, port))
	if err != nil {
		return fmt.Errorf("cannot reach this node at %s: %w", public, err)
	}
	return conn.Close()
}
