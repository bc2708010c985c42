package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// watchedSocket is a listener on a unix socket that listens again when its file is
// removed.
type watchedSocket struct {
	path  string
	again func(path string) (*unixListener, error)
	log   *slog.Logger

	mu struct {
		sync.Mutex
		listener *unixListener
		closed   bool
		said     string // what is wrong, as it was logged last
	}
}

// watch wraps the listener of a unix socket.
func (s *Server) watch(u *unixListener) *watchedSocket {
	w := &watchedSocket{path: u.Addr().String(), log: s.log, again: s.listenUnix}
	w.mu.listener = u
	return w
}

func (w *watchedSocket) now() *unixListener {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.listener
}

// Accept implements net.Listener.
func (w *watchedSocket) Accept() (net.Conn, error) {
	for {
		l := w.now()
		nc, err := l.Accept()
		if err == nil || l == w.now() {
			return nc, err
		}
	}
}

// Addr implements net.Listener.
func (w *watchedSocket) Addr() net.Addr { return w.now().Addr() }

// SetDeadline is that of net.UnixListener.
func (w *watchedSocket) SetDeadline(t time.Time) error { return w.now().SetDeadline(t) }

// SyscallConn is that of net.UnixListener.
func (w *watchedSocket) SyscallConn() (syscall.RawConn, error) { return w.now().SyscallConn() }

// Close implements net.Listener.
func (w *watchedSocket) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return net.ErrClosed
	}
	w.mu.closed = true
	return w.mu.listener.Close()
}

// look finds out whether the socket's file is there, and listens again when it is
// not.
func (w *watchedSocket) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return
	}
	at, err := socketFileAt(w.path)
	switch {
	case err == nil && at == w.mu.listener.file:
		w.mu.said = ""
	case errors.Is(err, fs.ErrNotExist):
		w.listenAgainLocked()
	case err != nil:
		w.sayLocked(fmt.Sprintf("socket cannot be found: %v", err))
	default:
		w.sayLocked("something else has taken the socket's path, and clients reach that: remove it, and this rank listens there again")
	}
}

func (w *watchedSocket) listenAgainLocked() {
	u, err := w.again(w.path)
	if err != nil {
		w.sayLocked(fmt.Sprintf("socket file was removed, and clients cannot connect; trying again every second: %v", err))
		return
	}
	old := w.mu.listener
	w.mu.listener, w.mu.said = u, ""
	_ = old.Close() // nobody can reach it any more
	w.log.Warn("socket file was removed: listening there again", "socket", w.path)
}

// sayLocked logs what is wrong with the socket, once.
func (w *watchedSocket) sayLocked(what string) {
	if w.mu.said != what {
		w.mu.said = what
		w.log.Error(what, "socket", w.path)
	}
}

// lookAtSockets sees that the files of the unix sockets are there.
func (s *Server) lookAtSockets() {
	all := s.listeners
	if s.admin != nil {
		all = append(all[:len(all):len(all)], *s.admin)
	}
	for _, g := range all {
		if w, ok := g.Listener.(*watchedSocket); ok {
			w.look()
		}
	}
}
