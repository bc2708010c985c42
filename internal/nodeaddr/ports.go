package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"

	"cascadekv/internal/units"
)

// ErrNoPort says that all ports of a range are in use.
var ErrNoPort = errors.New("no port is free")

// EachPort calls open with bind, or, where its port is 0 and there are ports, with each of
// these in its place until one is not in use: the lowest first, or, with fromTop, the highest.
// Listeners that begin at different ends do not take what the other was promised. Errors:
// ErrNoPort, those of open.
func EachPort(bind string, ports units.Ports, fromTop bool, open func(bind string) error) error {
	host, port, err := net.SplitHostPort(bind)
	if err != nil || port != "0" || ports == 0 {
		return open(bind)
	}
	for i := range ports.Count() {
		at := ports.First() + i
		if fromTop {
			at = ports.Last() - i
		}
		if err = open(net.JoinHostPort(host, strconv.Itoa(at))); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("%w of peers.ports = %v on %s; a rank needs two, and two more while it is upgraded: widen the range, or end what uses them: %w", ErrNoPort, ports, host, err)
}

// FreePort returns a port of host at which another process can listen next, over TCP and
// over UDP: one of ports if there are any, the highest, since fabrics take the lowest. Of
// all others it prefers those that the kernel gives to nobody who asks for any port, as
// each connection does: nothing holds the port until that process has it. Errors:
// ErrNoPort, those of listening.
func FreePort(ctx context.Context, host string, ports units.Ports) (port string, err error) {
	bind := net.JoinHostPort(host, "0")
	free := func(bind string) (err error) {
		port, err = tryPort(ctx, bind)
		return err
	}
	if ports != 0 {
		err = EachPort(bind, ports, true, free)
		return port, err
	}
	if ranges, rerr := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); rerr == nil {
		if quiet := quietPorts(string(ranges), rand.IntN); quiet != 0 && EachPort(bind, quiet, true, free) == nil {
			return port, nil
		}
	}
	for range 20 { // what is free for TCP may be in use for UDP
		if err = free(bind); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return port, err
}

// tryPort listens at bind for both protocols, and no longer; it returns the port.
func tryPort(ctx context.Context, bind string) (port string, err error) {
	tcp, err := new(net.ListenConfig).Listen(ctx, "tcp", bind)
	if err != nil {
		return "", err
	}
	defer tcp.Close()
	host, _, err := net.SplitHostPort(bind)
	if err != nil {
		return "", err
	}
	_, port, _ = net.SplitHostPort(tcp.Addr().String())
	udp, err := new(net.ListenConfig).ListenPacket(ctx, "udp", net.JoinHostPort(host, port))
	if err == nil {
		_ = udp.Close() // it only held the port
	}
	return port, err
}

// quietPorts chooses 64 ports between 10000 and what local, the text of
// ip_local_port_range, lets the kernel give away. It returns 0 if there are none.
func quietPorts(local string, choose func(n int) int) units.Ports {
	const lowest, count = 10_000, 64
	var first, last int
	if n, err := fmt.Sscan(local, &first, &last); n != 2 || err != nil || first < lowest+count || first > 65_536 {
		return 0
	}
	at := lowest + choose(first-lowest-count+1)
	ports, _ := units.ParsePorts(fmt.Sprintf("%d-%d", at, at+count-1)) // it is a range
	return ports
}
