package nodeaddr

import (
	"errors"
	"fmt"
	"net"
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
