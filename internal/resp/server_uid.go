package resp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

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

func unixServer(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(e, err); err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// tcpServer returns the user of the socket that listens on an address, or -1.
// One bound to the address itself gets its connections before one bound to all.
func tcpServer(addr *net.TCPAddr) (int, error) {
	port := fmt.Sprintf(":%04X", addr.Port)
	const any4, any6 = "00000000", "00000000000000000000000000000000"
	var wanted []string
	if ip := addr.IP.To4(); ip != nil {
		mapped := "0000000000000000FFFF0000" // IPv4 in an IPv6 socket; each word is in the machine's order
		if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
			mapped = "00000000000000000000FFFF"
		}
		wanted = []string{socketWords(ip) + port, mapped + socketWords(ip) + port, any4 + port, any6 + port}
	} else {
		wanted = []string{socketWords(addr.IP.To16()) + port, any6 + port}
	}
	listeners, err := listeningSockets()
	if err != nil {
		return -1, err
	}
	for _, w := range wanted {
		if uid, found := listeners[w]; found {
			return uid, nil
		}
	}
	return -1, nil
}

// socketWords writes an address as the kernel does: words of 32 bits in the
// machine's order, in hexadecimal digits.
func socketWords(ip net.IP) string {
	var b strings.Builder
	for i := 0; i+4 <= len(ip); i += 4 {
		fmt.Fprintf(&b, "%08X", binary.NativeEndian.Uint32(ip[i:]))
	}
	return b.String()
}

// listeningSockets maps each local address of a listening TCP socket, as the
// kernel writes it, to the socket's user. Sockets share an address only if they
// are of one user.
func listeningSockets() (map[string]int, error) {
	listeners := map[string]int{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			// sl local_address rem_address st queues timer retransmits uid …
			const listening = "0A"
			w := strings.Fields(lines.Text())
			if len(w) < 8 || w[3] != listening {
				continue
			}
			if uid, err := strconv.Atoi(w[7]); err == nil {
				listeners[w[1]] = uid
			}
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	return listeners, nil
}
