package preflight

import (
	"context"
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
	if c.Peers.Fabric != "tcp" {
		return Okay(name, "not needed: peers.fabric is %s", c.Peers.Fabric)
	}
	ctx, cancel := context.WithTimeout(context.Background(), networkPatience)
	defer cancel()
	bind, public, err := nodeaddr.This().ListenAt(ctx, c.Peers.Listen, c.Peers.Advertise)
	if err != nil {
		return Failure(name, "name an interface or an address of this node in peers.listen", "%v", err)
	}
	host, _, err := net.SplitHostPort(bind)
	if err == nil {
		err = reach(ctx, host, public)
	}
	if err != nil {
		return Failure(name, "name an interface or an address of this node in peers.listen and peers.advertise", "%v", err)
	}
	if public == "" {
		public = host
	}
	if ip, err := netip.ParseAddr(public); err == nil && ip.IsLoopback() {
		return Warning(name, "name an interface that other nodes reach in peers.listen", "%s: ranks on other nodes cannot reach it", public)
	}
	return Okay(name, "%s, which this node reaches; cascade status shows whether others do", public)
}

// reach listens at a host, and connects to it at the one that others use.
func reach(ctx context.Context, host, public string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w", host, err)
	}
	defer l.Close() // all that it was for is done
	if public == "" {
		public = host
	}
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
