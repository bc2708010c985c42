package netio

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"
)

// UnixListener is a listener on a unix socket that listens again when its file is
// removed (see Listener.CheckFile). Closing it removes the file. It is safe for
// concurrent use.
type UnixListener struct {
	o UnixOptions

	mu struct {
		sync.Mutex
		listener *ownedListener
		closed   bool
		logged   string // what is wrong, as it was logged last
	}
}

// ListenUnix makes a socket in a directory that only this user may write to. It is
// open to this user alone, or to Others too. The file of a program that is gone is
// replaced, and nothing else. Errors: ErrUnsafeSocket, ErrSocketTaken, and those of
// the file system.
func ListenUnix(o UnixOptions) (*UnixListener, error) {
	l, err := o.listen()
	if err != nil {
		return nil, err
	}
	return o.watch(l), nil
}

// AdoptUnix takes over a listener of an earlier program of this process; o.Path is
// ignored.
func AdoptUnix(l *net.UnixListener, o UnixOptions) *UnixListener {
	o.Path = l.Addr().String()
	return o.watch(own(l))
}

func (o UnixOptions) watch(l *ownedListener) *UnixListener {
	w := &UnixListener{o: o}
	w.mu.listener = l
	return w
}

func (w *UnixListener) now() *ownedListener {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.listener
}

// Accept implements net.Listener.
func (w *UnixListener) Accept() (net.Conn, error) {
	for {
		l := w.now()
		nc, err := l.Accept()
		if err == nil || l == w.now() {
			return nc, err
		}
	}
}

// Addr implements net.Listener.
func (w *UnixListener) Addr() net.Addr { return w.now().Addr() }

// SetDeadline is that of net.UnixListener.
func (w *UnixListener) SetDeadline(t time.Time) error { return w.now().SetDeadline(t) }

// SyscallConn is that of net.UnixListener.
func (w *UnixListener) SyscallConn() (syscall.RawConn, error) { return w.now().SyscallConn() }

// Close implements net.Listener.
func (w *UnixListener) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return net.ErrClosed
	}
	w.mu.closed = true
	return w.mu.listener.Close()
}

// check finds out whether the socket's file is there, and listens again when it is
// not.
func (w *UnixListener) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return
	}
	at, err := socketFileAt(w.o.Path)
	switch {
	case err == nil && at == w.mu.listener.file:
		w.mu.logged = ""
	case errors.Is(err, fs.ErrNotExist):
		w.listenAgainLocked()
	case err != nil:
		w.logLocked(fmt.Sprintf("socket cannot be found: %v", err))
	default:
		w.logLocked("something else has taken the socket's path, and clients reach that: remove it, and this rank listens there again")
	}
}

func (w *UnixListener) listenAgainLocked() {
	u, err := w.o.listen()
	if err != nil {
		w.logLocked(fmt.Sprintf("socket file was removed, and clients cannot connect; trying again every second: %v", err))
		return
	}
	old := w.mu.listener
	w.mu.listener, w.mu.logged = u, ""
	_ = old.Close() // nobody can reach it any more
	w.o.Log.Warn("socket file was removed: listening there again", "socket", w.o.Path)
}

// logLocked logs what is wrong with the socket, once.
func (w *UnixListener) logLocked(what string) {
	if w.mu.logged != what {
		w.mu.logged = what
		w.o.Log.Error(what, "socket", w.o.Path)
	}
}
