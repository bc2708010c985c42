package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// errPeer means that a connection's other end may not use this rank.
var errPeer = errors.New("peer is another user")

// errUnproven means that a client of this machine could not be attributed to a
// user, such as one that has closed its end.
var errUnproven = errors.New("peer's user is not proven")

// unknownUID stands for a peer on another machine, whose user cannot be known.
const unknownUID = -1

// peerUID returns the user at the other end: for a unix socket the one whom the
// kernel recorded, for TCP from this machine, whichever address it came by, the
// one who made the peer's socket. It is unknownUID only for a peer on another
// machine. Errors: errUnproven, and what the kernel returns.
func peerUID(nc net.Conn) (int, error) {
	switch c := nc.(type) {
	case *net.UnixConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return unknownUID, err
		}
		var cred *unix.Ucred
		if e := raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}); e != nil || err != nil {
			return unknownUID, errors.Join(e, err)
		}
		return int(cred.Uid), nil
	case *net.TCPConn:
		return tcpPeerUID(c)
	}
	return unknownUID, fmt.Errorf("%T has no peer", nc)
}

// tcpPeerUID finds the socket at the other end among those of this machine. Both
// ends must be established: a socket that is being closed belongs to no process,
// and the kernel then reports user 0; and while our end is established no other
// socket can have the peer's addresses.
func tcpPeerUID(c *net.TCPConn) (int, error) {
	remote, _ := c.RemoteAddr().(*net.TCPAddr)
	local, _ := c.LocalAddr().(*net.TCPAddr)
	if remote == nil || local == nil {
		return unknownUID, fmt.Errorf("%w: its connection has no addresses", errUnproven)
	}
	sock, err := findSocket(remote, local) // seen from its own side
	if errors.Is(err, errNoSocket) {
		if isLocal(remote.IP) {
			return unknownUID, fmt.Errorf("%w: no process of this machine has %v: %w", errUnproven, remote, err)
		}
		return unknownUID, nil
	} else if err != nil {
		return unknownUID, fmt.Errorf("%w: owner of %v: %w", errUnproven, remote, err)
	}
	ours, err := tcpState(c)
	switch {
	case err != nil:
		return unknownUID, fmt.Errorf("%w: %w", errUnproven, err)
	case sock.state != unix.BPF_TCP_ESTABLISHED || sock.inode == 0 || ours != unix.BPF_TCP_ESTABLISHED:
		return unknownUID, fmt.Errorf("%w: %v is closing or closed (state %d, here %d)", errUnproven, remote, sock.state, ours)
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

// allowed decides whether a peer may speak at all. Peers on other machines are
// let in only where a password is asked of them.
func (s *Server) allowed(nc net.Conn, uid int, err error) error {
	switch {
	case err != nil:
		return err
	case uid == unknownUID && s.limits.Load().Password == "":
		return fmt.Errorf("%w: it comes from another machine and no password is set (password_file)", errPeer)
	case uid == unknownUID || uid == 0 || uid == os.Geteuid() || slices.Contains(s.opt.AllowUIDs, uid):
		return nil
	}
	return fmt.Errorf("%w: uid %d is neither this rank's (%d) nor in allow_uids", errPeer, uid, os.Geteuid())
}
