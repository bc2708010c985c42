package resp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrForeignServer matches every ForeignServerError.
var ErrForeignServer = errors.New("resp: server of another user")

// ForeignServerError means that an address on this machine is served by a user
// whom the caller does not trust. Nothing was sent there.
type ForeignServerError struct {
	Addr string // path, or host:port
	UID  int    // of the server; -1 if it is not in the table of sockets
	Own  int    // of the caller
}

// Error names the address, the user and what to do.
func (e *ForeignServerError) Error() string {
	if e.UID < 0 {
		return fmt.Sprintf("the user who listens on %s cannot be determined: nothing was sent there; use the rank's unix socket", e.Addr)
	}
	return fmt.Sprintf("%s is served by uid %d, neither this user (uid %d) nor root: nothing was sent there; name the address of your own rank, "+
		"or, if uid %d is to be trusted, list it in server_uids (CASCADE_SERVER_UIDS)", e.Addr, e.UID, e.Own, e.UID)
}

// Is makes every ForeignServerError match ErrForeignServer.
func (e *ForeignServerError) Is(target error) bool { return target == ErrForeignServer }

// CheckServer returns a *ForeignServerError unless the server at the other end
// of conn is of the caller's own user, of root, or of a user in uids. It is to
// be called before the first byte is written.
//
// The kernel names the user who called listen on a unix socket. For TCP within
// this machine it is the user of the listening socket in /proc/net. Of a server
// on another machine nothing is known: that is nil.
func CheckServer(conn net.Conn, uids ...int) error {
	var uid int
	var err error
	switch c := conn.(type) {
	case *net.UnixConn:
		uid, err = unixServer(c)
	case *net.TCPConn:
		local, remote := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
		if !remote.IP.IsLoopback() && !remote.IP.Equal(local.IP) {
			return nil
		}
		uid, err = tcpServer(remote)
	default:
		return fmt.Errorf("resp: the user of a %T cannot be determined", conn)
	}
	if err != nil {
		return fmt.Errorf("resp: who serves %s: %w", conn.RemoteAddr(), err)
	}
	own := os.Geteuid()
	if uid == own || uid == 0 || uid >= 0 && slices.Contains(uids, uid) {
		return nil
	}
	return &ForeignServerError{Addr: conn.RemoteAddr().String(), UID: uid, Own: own}
}

// ServerCred returns the process that listens at the other end of a connection, as it was when it
// began to. Its number is 0 if it is in another pid namespace.
func ServerCred(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(e, err)
}

func unixServer(c *net.UnixConn) (int, error) {
	cred, err := ServerCred(c)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// listening is the state of a socket that listens, in /proc/net/tcp.
const listening = 0x0a

// tcpServer returns the user of the socket that listens on an address, or -1. One
// bound to the address itself gets its connections before one bound to all.
// Sockets share an address only if they are of one user.
func tcpServer(addr *net.TCPAddr) (uid int, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return -1, err
	}
	uid = -1
	//lint:ignore SA1019 sandboxes and kernels without inet_diag have this table, and no netlink to ask instead
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		sockets, err := table()
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return -1, err
		}
		for _, s := range sockets {
			switch {
			case s.St != listening || s.LocalPort != uint64(addr.Port):
			case s.LocalAddr.Equal(addr.IP):
				return int(s.UID), nil
			case uid < 0 && s.LocalAddr.IsUnspecified() && (len(s.LocalAddr) == net.IPv6len || addr.IP.To4() != nil):
				uid = int(s.UID)
			}
		}
	}
	return uid, nil
}
