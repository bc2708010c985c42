package admission

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

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

// diagPatience bounds the wait for the kernel's answer, which is there when the
// request has been sent.
var diagPatience = unix.Timeval{Sec: 1}

const (
	diagHeader  = 16              // struct nlmsghdr
	diagRequest = diagHeader + 56 // and struct inet_diag_req_v2
	diagReply   = diagHeader + 72 // and struct inet_diag_msg
)

// findSocket returns the TCP socket of this network namespace that has exactly
// these addresses. Errors: errNoSocket, and what the kernel returns.
func findSocket(local, remote *net.TCPAddr) (tcpSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return tcpSocket{}, errNoSocket
	} else if err != nil {
		return tcpSocket{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &diagPatience); err != nil {
		return tcpSocket{}, os.NewSyscallError("setsockopt", err)
	}
	request, err := diagQuestion(local, remote)
	if err != nil {
		return tcpSocket{}, err
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return tcpSocket{}, os.NewSyscallError("send", err)
	}
	answer := make([]byte, 4<<10)
	for {
		n, from, err := unix.Recvfrom(fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return tcpSocket{}, os.NewSyscallError("recv", err)
		}
		if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
			continue // not the kernel
		}
		return diagAnswer(answer[:n])
	}
}

// diagQuestion asks for one socket, by both of its addresses. It is no dump: that
// would compare the ports only.
func diagQuestion(local, remote *net.TCPAddr) ([]byte, error) {
	p := make([]byte, diagRequest)
	ne := binary.NativeEndian
	ne.PutUint32(p[0:], diagRequest)
	ne.PutUint16(p[4:], unix.SOCK_DIAG_BY_FAMILY)
	ne.PutUint16(p[6:], unix.NLM_F_REQUEST)
	r := p[diagHeader:]
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
	return p, nil
}

// diagAnswer reads what the kernel answered.
func diagAnswer(p []byte) (tcpSocket, error) {
	ne := binary.NativeEndian
	if len(p) < diagHeader+4 {
		return tcpSocket{}, fmt.Errorf("%d bytes of an answer about sockets", len(p))
	}
	switch kind := ne.Uint16(p[4:]); {
	case kind == unix.NLMSG_ERROR:
		errno := syscall.Errno(-int32(ne.Uint32(p[diagHeader:])))
		if errno == unix.ENOENT {
			return tcpSocket{}, errNoSocket
		}
		return tcpSocket{}, os.NewSyscallError("sock_diag", errno)
	case kind == unix.SOCK_DIAG_BY_FAMILY && len(p) >= diagReply:
		m := p[diagHeader:]
		return tcpSocket{state: m[1], uid: int(ne.Uint32(m[64:])), inode: ne.Uint32(m[68:])}, nil
	default:
		return tcpSocket{}, fmt.Errorf("an answer of kind %d and %d bytes about sockets", kind, len(p))
	}
}
