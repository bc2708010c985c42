package admission

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrPeer means that a connection's other end may not use this rank.
var ErrPeer = errors.New("peer is another user")

// ErrUnproven means that a client of this machine could not be attributed to a
// user, such as one that has closed its end.
var ErrUnproven = errors.New("peer's user is not proven")

// UnknownUID stands for a peer on another machine, whose user cannot be known.
const UnknownUID = -1

// PeerUID returns the user at the other end: for a unix socket the one whom the
// kernel recorded, for TCP from this machine, whichever address it came by, the
// one who made the peer's socket. It is UnknownUID only for a peer on another
// machine. Errors: ErrUnproven, and what the kernel returns.
func PeerUID(nc net.Conn) (int, error) {
	switch c := nc.(type) {
	case *net.UnixConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return UnknownUID, err
		}
		var cred *unix.Ucred
		if e := raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}); e != nil || err != nil {
			return UnknownUID, errors.Join(e, err)
		}
		return int(cred.Uid), nil
	case *net.TCPConn:
		return tcpPeerUID(c)
	}
	return UnknownUID, fmt.Errorf("%T has no peer", nc)
}

// tcpPeerUID finds the socket at the other end among those of this machine. Both
// ends must be established: a socket that is being closed belongs to no process,
// and the kernel then reports user 0; and while our end is established no other
// socket can have the peer's addresses.
func tcpPeerUID(c *net.TCPConn) (int, error) {
	remote, _ := c.RemoteAddr().(*net.TCPAddr)
	local, _ := c.LocalAddr().(*net.TCPAddr)
	if remote == nil || local == nil {
		return UnknownUID, fmt.Errorf("%w: its connection has no addresses", ErrUnproven)
	}
	sock, err := findSocket(remote, local) // seen from its own side
	if errors.Is(err, errNoSocket) {
		if isLocal(remote.IP) {
			return UnknownUID, fmt.Errorf("%w: no process of this machine has %v: %w", ErrUnproven, remote, err)
		}
		return UnknownUID, nil
	} else if err != nil {
		return UnknownUID, fmt.Errorf("%w: owner of %v: %w", ErrUnproven, remote, err)
	}
	ours, err := tcpState(c)
	switch {
	case err != nil:
		return UnknownUID, fmt.Errorf("%w: %w", ErrUnproven, err)
	case sock.state != unix.BPF_TCP_ESTABLISHED || sock.inode == 0 || ours != unix.BPF_TCP_ESTABLISHED:
		return UnknownUID, fmt.Errorf("%w: %v is closing or closed (state %d, here %d)", ErrUnproven, remote, sock.state, ours)
	}
	return sock.uid, nil
}

// tcpState returns the state of our end, unix.BPF_TCP_*.
func tcpState(c *net.TCPConn) (uint8, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); e != nil || err != nil {
		return 0, errors.Join(e, err)
	}
	return info.State, nil
}

// isLocal reports whether an address is one of this machine's, which no packet of
// another machine can come from. It is when that cannot be found out.
func isLocal(ip net.IP) bool {
	if ip.IsLoopback() {
		return true
	}
	routes, err := netlink.RouteGet(ip)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false // own addresses have routes
	}
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
}

// Allowed returns nil if a peer, whose user PeerUID found or did not, may speak at
// all: the rank's own user, root and those of uids. Peers on other machines are let
// in only where a password is asked of them. Errors: ErrPeer, err.
func Allowed(uid int, err error, uids []int, password bool) error {
	switch {
	case err != nil:
		return err
	case uid == UnknownUID && !password:
		return fmt.Errorf("%w: it comes from another machine and no password is set (password_file)", ErrPeer)
	case uid == UnknownUID || uid == 0 || uid == os.Geteuid() || slices.Contains(uids, uid):
		return nil
	}
	return fmt.Errorf("%w: uid %d is neither this rank's (%d) nor in allow_uids", ErrPeer, uid, os.Geteuid())
}

// Source names where a client comes from: its user where that is known, else its
// address, of IPv6 the network of 64 bits that one machine has to itself.
func Source(uid int, ip net.IP) string {
	switch {
	case uid != UnknownUID:
		return "uid " + strconv.Itoa(uid)
	case ip == nil:
		return "unknown"
	case ip.To4() == nil:
		return ip.Mask(net.CIDRMask(64, 128)).String() + "/64"
	}
	return ip.String()
}

// RemoteIP returns the address at the other end, nil for a unix socket.
func RemoteIP(nc net.Conn) net.IP {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.IP
	}
	return nil
}
