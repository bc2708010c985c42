package netio

import (
	"net"

	"golang.org/x/sys/unix"
)

// unpaced is a congestion control that every kernel has and lets everybody
// choose, and that sends as fast as the reader reads.
const unpaced = "reno"

// withoutPace has the kernel send at once what a client of this machine is sent.
// Where the system's congestion control is one that paces, such as BBR, it doles
// out even what never leaves the machine by timers, at half the speed. Towards
// other machines the system's choice stays.
func withoutPace(fd int, nc net.Conn) {
	if sameHost(nc.LocalAddr(), nc.RemoteAddr()) {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpaced) // a hint
	}
}

// sameHost reports whether both ends of a TCP connection are on this machine: a
// client that uses the machine's own address talks to it by the loopback device
// too.
func sameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, too := remote.(*net.TCPAddr)
	return ok && too && (r.IP.IsLoopback() || r.IP.Equal(l.IP))
}
