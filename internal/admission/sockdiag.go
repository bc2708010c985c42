package admission

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// errNoSocket means that this machine has no TCP socket with such addresses, or
// that the kernel does not list its sockets.
var errNoSocket = errors.New("no such socket on this machine")

// tcpSocket is what the kernel records of a TCP socket.
type tcpSocket struct {
	state uint8  // unix.BPF_TCP_*
	uid   int    // of the process that made it; 0 also where the kernel has forgotten it
	inode uint32 // 0: no process has it any more
}

// diagReply is the size of struct inet_diag_msg.
const diagReply = 72

// findSocket returns the TCP socket of this network namespace that has exactly
// these addresses. Errors: errNoSocket, and what the kernel returns.
func findSocket(local, remote *net.TCPAddr) (tcpSocket, error) {
	question, err := diagQuestion(local, remote)
	if err != nil {
		return tcpSocket{}, err
	}
	request := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, 0)
	request.AddRawData(question)
	answers, err := request.Execute(unix.NETLINK_SOCK_DIAG, unix.SOCK_DIAG_BY_FAMILY)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.ENOENT):
		return tcpSocket{}, errNoSocket
	case err != nil:
		return tcpSocket{}, os.NewSyscallError("sock_diag", err)
	case len(answers) != 1 || len(answers[0]) < diagReply:
		return tcpSocket{}, fmt.Errorf("%d answers about a socket", len(answers))
	}
	m, ne := answers[0], binary.NativeEndian
	return tcpSocket{state: m[1], uid: int(ne.Uint32(m[64:])), inode: ne.Uint32(m[68:])}, nil
}

// diagQuestion asks for one socket, by both of its addresses. It is no dump: that
// would compare the ports only.
func diagQuestion(local, remote *net.TCPAddr) ([]byte, error) {
	r := make([]byte, 56) // struct inet_diag_req_v2
	ne := binary.NativeEndian
	r[1] = unix.IPPROTO_TCP
	ne.PutUint32(r[4:], ^uint32(0)) // in whichever state
	binary.BigEndian.PutUint16(r[8:], uint16(local.Port))
	binary.BigEndian.PutUint16(r[10:], uint16(remote.Port))
	if l, m := local.IP.To4(), remote.IP.To4(); l != nil && m != nil {
		r[0] = unix.AF_INET
		copy(r[12:], l)
		copy(r[28:], m)
	} else {
		r[0] = unix.AF_INET6
		copy(r[12:28], local.IP.To16())
		copy(r[28:44], remote.IP.To16())
	}
	if zone := local.Zone; zone != "" {
		iface, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, fmt.Errorf("zone of %v: %w", local, err)
		}
		ne.PutUint32(r[44:], uint32(iface.Index))
	}
	ne.PutUint64(r[48:], ^uint64(0)) // no cookie
	return r, nil
}
