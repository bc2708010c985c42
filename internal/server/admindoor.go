package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"cascadekv/internal/admission"
	"cascadekv/internal/netio"
)

const (
	// refusalPatience bounds how long a refused client of HTTP is waited for, to
	// read why, and maxRefusals how many are at a time; more are just closed.
	refusalPatience = time.Second
	maxRefusals     = 16
)

// adminDoor is the listener of the HTTP side for those who may use it. There is
// no password, so that users of this machine alone come in.
type adminDoor struct {
	*netio.Listener
	srv *Server
}

// listenAdmin opens the listener of the HTTP side: a unix socket where the
// address is an absolute path.
func (s *Server) listenAdmin(address string) (net.Listener, error) {
	if filepath.IsAbs(address) {
		return netio.ListenUnix(s.unixOptions(address))
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("server: listen on %s: %w; choose another address (--admin-listen)", address, err)
	}
	return l, nil
}

// Accept implements net.Listener.
func (d adminDoor) Accept() (net.Conn, error) {
	for {
		nc, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := admission.PeerUID(nc)
		if err == nil && uid == admission.UnknownUID {
			err = fmt.Errorf("%w: it comes from another machine", admission.ErrPeer)
		}
		if err = d.srv.allowed(uid, err); err == nil {
			return nc, nil
		}
		d.srv.logRefused("admin", nc, uid, err)
		select {
		case d.srv.adminRefusals <- struct{}{}:
			go func() {
				refuseHTTP(nc, http.StatusForbidden, "this rank serves its own user, root and the users of allow_uids")
				<-d.srv.adminRefusals
			}()
		default:
			_ = nc.Close()
		}
	}
}

// refuseHTTP answers a client of HTTP before its request is read, and closes. The
// request is read so far that the client is not reset before it has the answer.
func refuseHTTP(nc net.Conn, status int, why string) {
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(refusalPatience))
	if _, err := io.WriteString(nc, httpRefusal(status, why)); err != nil {
		return
	}
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, nc, 64<<10)
	}
}

// httpRefusal is a whole answer of HTTP, the last one of its connection.
func httpRefusal(status int, why string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n",
		status, http.StatusText(status), len(why)+1, why)
}
