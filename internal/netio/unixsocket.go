package netio

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/rawfd"
)

// Errors of ListenUnix about the place of a unix socket.
var (
	// ErrUnsafeSocket means that others could replace the socket by their own.
	ErrUnsafeSocket = errors.New("server: socket directory is not safe")

	// ErrSocketTaken means that the path is not this user's to take: something
	// else lies there, or a program listens.
	ErrSocketTaken = errors.New("server: socket path is taken")
)

// dialPatience bounds a question to a unix socket whether a program has it.
const dialPatience = time.Second

// ownedListener is a listener that removes its file when it is closed, and only
// that: whatever lies at the path by then may be another program's.
type ownedListener struct {
	*net.UnixListener
	file  socketFile
	close sync.Once
}

// Close implements net.Listener.
func (l *ownedListener) Close() error {
	l.close.Do(l.file.remove) // before its inode can be given to another file
	return l.UnixListener.Close()
}

// socketFile is a file as it was made. No other file can have its inode while
// the socket is open.
type socketFile struct {
	path     string // "": none
	dev, ino uint64
}

func socketFileAt(path string) (socketFile, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return socketFile{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return socketFile{path, uint64(st.Dev), st.Ino}, nil
}

func (f socketFile) remove() {
	if f.path == "" {
		return
	}
	if now, err := socketFileAt(f.path); err == nil && now == f {
		_ = os.Remove(f.path) // else the next rank replaces it
	}
}

// UnixOptions describe a unix socket.
type UnixOptions struct {
	Path   string
	Others bool // other users may connect too: who may is decided by SO_PEERCRED
	Log    *slog.Logger
}

// listen makes a socket in a directory that only this user may write to. It is
// open to this user alone, or to Others too. The file of a rank that is gone is
// replaced, and nothing else.
func (o UnixOptions) listen() (*ownedListener, error) {
	path, dir := o.Path, filepath.Dir(o.Path)
	if err := checkLinks(dir); err != nil {
		return nil, err
	}
	if err := makeSocketDir(dir, o.Others); err != nil {
		return nil, fmt.Errorf("server: directory of the socket: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	if o.Others {
		o.letIn(dir)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// Between bind and chmod only the umask protects the socket.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("server: listen on %s: %w; choose another path of at most 107 bytes (--socket)", path, err)
	}
	u := &ownedListener{UnixListener: l.(*net.UnixListener)}
	u.SetUnlinkOnClose(false)
	if u.file, err = socketFileAt(path); err == nil && o.Others {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		_ = u.Close()
		return nil, fmt.Errorf("server: socket: %w", err)
	}
	return u, nil
}

// own returns a listener of an earlier program of this process. Its file is the one
// at the path if this process is who answers there.
func own(l *net.UnixListener) *ownedListener {
	u := &ownedListener{UnixListener: l}
	u.SetUnlinkOnClose(false)
	path := l.Addr().String()
	file, err := socketFileAt(path)
	if err != nil {
		return u
	}
	nc, err := net.DialTimeout("unix", path, dialPatience)
	if err != nil {
		return u
	}
	defer nc.Close()
	cred, err := rawfd.Get(nc.(*net.UnixConn), func(fd int) (*unix.Ucred, error) { return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil && int(cred.Pid) == os.Getpid() {
		u.file = file
	}
	return u
}

// makeSocketDir makes the directory and those above it that are missing, for this
// user alone, or so that others can pass through.
func makeSocketDir(dir string, others bool) error {
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if up := filepath.Dir(dir); up != dir {
		if err := makeSocketDir(up, others); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // made by another rank meanwhile
	} else if err != nil {
		return err
	}
	if others {
		return os.Chmod(dir, 0o711) // whatever the umask is
	}
	return nil
}

// letIn lets the users of allow_uids pass through the directory if it is the
// default one, which belongs to ranks alone. Others are their owner's to open.
func (o UnixOptions) letIn(dir string) {
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm()&0o011 != 0 {
		return
	}
	if filepath.Base(dir) == "cascade-"+strconv.Itoa(os.Geteuid()) {
		err = os.Chmod(dir, 0o711)
	} else {
		err = fs.ErrPermission
	}
	if err != nil {
		o.Log.Warn("users of allow_uids cannot reach the socket; chmod 711 its directory, or choose another (--socket)", "directory", dir, "mode", st.Mode().String(), "err", err)
	}
}

// removeStale removes a socket of this user that no program has any more. It
// leaves everything else and returns ErrSocketTaken.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("server: socket: %w", err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%w: %s is no socket (mode %v) and is not replaced; remove it, or choose another path (--socket)", ErrSocketTaken, path, st.Mode())
	}
	if uid := int(st.Sys().(*syscall.Stat_t).Uid); uid != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to uid %d and is not replaced; choose another path (--socket)", ErrSocketTaken, path, uid)
	}
	c, err := net.DialTimeout("unix", path, dialPatience)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%w: %s: another rank, or another program, answers there; give this one another --socket", ErrSocketTaken, path)
	case errors.Is(err, syscall.ENOENT):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: another program has %s: %w; give this rank another --socket", ErrSocketTaken, path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("server: stale socket: %w", err)
	}
	return nil
}

// checkDir refuses a directory in which another user could swap the socket for
// one of their own. Directories with the sticky bit, such as /tmp, are fine.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("server: directory of the socket: %w", err)
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	if st.Mode().Perm()&0o022 != 0 && st.Mode()&os.ModeSticky == 0 || uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("%w: %s (mode %v, uid %d) can be changed by others; chmod 700 it or choose another (--socket)", ErrUnsafeSocket, dir, st.Mode(), uid)
	}
	return nil
}

// checkLinks refuses a path that goes through a symbolic link of another user,
// who can make it lead to a directory of their own at any time.
func checkLinks(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		st, err := os.Lstat(dir)
		if err == nil && st.Mode()&os.ModeSymlink != 0 {
			if uid := int(st.Sys().(*syscall.Stat_t).Uid); uid != os.Geteuid() && uid != 0 {
				return fmt.Errorf("%w: %s is a symbolic link of uid %d, who can make it lead elsewhere; choose another (--socket)", ErrUnsafeSocket, dir, uid)
			}
		}
		if dir == filepath.Dir(dir) {
			return nil // what is missing, or cannot be looked at, is for others to report
		}
	}
}
