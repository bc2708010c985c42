package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// socketFile is a listener on a unix socket that listens again when its file is
// removed. It removes no file but its own.
type socketFile struct {
	path  string
	again func() (net.Listener, error)
	log   *slog.Logger

	mu struct {
		sync.Mutex
		listener *net.UnixListener
		file     os.FileInfo // nil: it was not there
		closed   bool
		said     string // what is wrong, as it was logged last
	}
}

// watched wraps the listener of the unix socket.
func (s *Server) watched(l net.Listener) net.Listener {
	u, ok := l.(*net.UnixListener)
	if !ok {
		return l
	}
	w := &socketFile{path: s.opt.Socket, log: s.log, again: func() (net.Listener, error) { return listenUnix(s.opt.Socket) }}
	w.setLocked(u)
	return w
}

func (w *socketFile) setLocked(u *net.UnixListener) {
	u.SetUnlinkOnClose(false)
	w.mu.listener, w.mu.said = u, ""
	w.mu.file, _ = os.Lstat(w.path) // nil is noticed at the next look
}

func (w *socketFile) now() *net.UnixListener {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.listener
}

// Accept implements net.Listener.
func (w *socketFile) Accept() (net.Conn, error) {
	for {
		l := w.now()
		nc, err := l.Accept()
		if err == nil || l == w.now() {
			return nc, err
		}
	}
}

// Addr implements net.Listener.
func (w *socketFile) Addr() net.Addr { return w.now().Addr() }

// SetDeadline is that of net.UnixListener.
func (w *socketFile) SetDeadline(t time.Time) error { return w.now().SetDeadline(t) }

// SyscallConn is that of net.UnixListener.
func (w *socketFile) SyscallConn() (syscall.RawConn, error) { return w.now().SyscallConn() }

// Close implements net.Listener.
func (w *socketFile) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return net.ErrClosed
	}
	w.mu.closed = true
	err := w.mu.listener.Close()
	if at, _ := os.Lstat(w.path); sameSocket(at, w.mu.file) {
		err = errors.Join(err, os.Remove(w.path))
	}
	return err
}

// sameSocket reports whether two looks at a path saw one socket: numbers of files
// come again, times do not.
func sameSocket(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

// look finds out whether the socket's file is there, and listens again when it is
// not.
func (w *socketFile) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, err := os.Lstat(w.path)
	switch {
	case w.mu.closed || sameSocket(at, w.mu.file):
		w.mu.said = ""
	case errors.Is(err, os.ErrNotExist):
		w.listenAgainLocked()
	case err != nil:
		w.sayLocked(fmt.Sprintf("socket can not be found: %v", err))
	default:
		w.sayLocked(fmt.Sprintf("something else (%v) has taken the socket's path, and clients reach that: remove it, and this rank listens there again", at.Mode()))
	}
}

func (w *socketFile) listenAgainLocked() {
	l, err := w.again()
	u, ok := l.(*net.UnixListener)
	if err != nil || !ok {
		w.sayLocked(fmt.Sprintf("socket file was removed, and clients can not connect; trying again every second: %v", err))
		return
	}
	old := w.mu.listener
	w.setLocked(u)
	_ = old.Close() // nobody can reach it any more
	w.log.Warn("socket file was removed: listening there again", "socket", w.path)
}

// sayLocked logs what is wrong with the socket, once.
func (w *socketFile) sayLocked(what string) {
	if w.mu.said != what {
		w.mu.said = what
		w.log.Error(what, "socket", w.path)
	}
}

// lookAtSocket sees that the file of the unix socket is there.
func (s *Server) lookAtSocket() {
	for _, g := range s.listeners {
		if w, ok := g.Listener.(*socketFile); ok {
			w.look()
		}
	}
}
