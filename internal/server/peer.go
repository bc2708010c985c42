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

// unknownUID stands for a peer on another machine, whose user nobody can tell.
const unknownUID = -1

// peerUID returns the user at the other end. For a unix socket the kernel
// tells; for TCP on loopback the socket table does, since both ends are here.
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
		if !c.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
			return unknownUID, nil
		}
		// Seen from its own side, the peer's socket is remote → local.
		sock, err := netlink.SocketGet(c.RemoteAddr(), c.LocalAddr())
		if err != nil {
			return unknownUID, fmt.Errorf("who owns %v: %w", c.RemoteAddr(), err)
		}
		return int(sock.UID), nil
	}
	return unknownUID, fmt.Errorf("%T has no peer", nc)
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
