package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
)

// passable is a directory that other users reach.
func passable(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func modeOf(t testing.TB, path string) os.FileMode {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode().Perm()
}

// TestListedUserComesIn: with allow_uids, and nothing else done, the users in it
// come in by the socket, others do not, and memory stays the rank's own user's.
func TestListedUserComesIn(t *testing.T) {
	for name, before := range map[string]os.FileMode{"new directory": 0, "left by a rank without allow_uids": 0o700} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(passable(t), "above", "cascade-"+strconv.Itoa(os.Geteuid()))
			if before != 0 {
				if err := os.MkdirAll(dir, 0o711); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, before); err != nil {
					t.Fatal(err)
				}
			}
			sock := filepath.Join(dir, "rank0.sock")
			newRig(t, 8<<20, func(o *Options) { o.Socket, o.AllowUIDs = sock, []int{stranger} })
			if d, s := modeOf(t, dir), modeOf(t, sock); d != 0o711 || s != 0o666 {
				t.Errorf("directory %#o, socket %#o", d, s)
			}
			c := resp.NewClient(dialAs(t, stranger, net.Dialer{}, "unix", sock), 20*time.Second)
			if err := c.Set("k", []byte("v")); err != nil {
				t.Errorf("SET of a user of allow_uids: %v", err)
			}
			if _, err := c.Do("CASCADE.ARENA"); code(err) != "NOPERM" {
				t.Errorf("ARENA of a user of allow_uids: %v", err)
			}
			other := resp.NewClient(dialAs(t, stranger-1, net.Dialer{}, "unix", sock), 20*time.Second)
			if rep, err := other.Do("GET", "k"); err == nil {
				t.Errorf("GET of a user that is not listed: %+v", rep)
			}
		})
	}
}

// TestOwnDirectoryStaysClosed: a directory that is not the ranks' own is not opened
// to others, and a line says what is to be done.
func TestOwnDirectoryStaysClosed(t *testing.T) {
	var log testlog.Log
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	newRig(t, 8<<20, func(o *Options) {
		o.Socket, o.AllowUIDs, o.Log = filepath.Join(dir, "s"), []int{stranger}, slog.New(slog.NewTextHandler(&log, nil))
	})
	if m := modeOf(t, dir); m != 0o700 || !log.Has("chmod 711") {
		t.Errorf("mode %#o; %s", m, log.String())
	}
}

// bound makes a socket of a kind at a path.
func bound(t testing.TB, kind int, path string) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestSocketPathIsNotTaken: what is not a dead socket of this user stays where it
// is, and the rank does not start.
func TestSocketPathIsNotTaken(t *testing.T) {
	keep := func(t testing.TB, fd int) { t.Cleanup(func() { unix.Close(fd) }) }
	for name, c := range map[string]struct {
		put func(t testing.TB, path string)
		ok  bool
	}{
		"nothing": {func(testing.TB, string) {}, true},
		"dead stream socket": {func(t testing.TB, p string) {
			fd := bound(t, unix.SOCK_STREAM, p)
			_ = unix.Listen(fd, 1)
			unix.Close(fd)
		}, true},
		"dead datagram socket": {func(t testing.TB, p string) { unix.Close(bound(t, unix.SOCK_DGRAM, p)) }, true},
		"live datagram socket": {func(t testing.TB, p string) { keep(t, bound(t, unix.SOCK_DGRAM, p)) }, false},
		"live seqpacket socket": {func(t testing.TB, p string) {
			fd := bound(t, unix.SOCK_SEQPACKET, p)
			keep(t, fd)
			_ = unix.Listen(fd, 1)
		}, false},
		"live stream socket": {func(t testing.TB, p string) { fd := bound(t, unix.SOCK_STREAM, p); keep(t, fd); _ = unix.Listen(fd, 1) }, false},
		"live stream socket that accepts nobody": {func(t testing.TB, p string) {
			fd := bound(t, unix.SOCK_STREAM, p)
			keep(t, fd)
			_ = unix.Listen(fd, 0)
			for range 3 { // until its backlog is full
				c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				keep(t, c)
				_ = unix.Connect(c, &unix.SockaddrUnix{Name: p})
			}
		}, false},
		"dead socket of another user": {func(t testing.TB, p string) {
			unix.Close(bound(t, unix.SOCK_STREAM, p))
			if os.Chown(p, stranger, stranger) != nil {
				t.Skip("only root can make it: run this test as root")
			}
		}, false},
		"file":          {func(t testing.TB, p string) { _ = os.WriteFile(p, []byte("x"), 0o600) }, false},
		"directory":     {func(t testing.TB, p string) { _ = os.Mkdir(p, 0o700) }, false},
		"symbolic link": {func(t testing.TB, p string) { _ = os.Symlink(p+"-not-there", p) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8<<20)
			path := filepath.Join(t.TempDir(), "s")
			c.put(t, path)
			was, _ := socketFileAt(path)
			l, err := r.srv.listenUnix(path)
			if err == nil {
				defer l.Close()
			}
			if c.ok != (err == nil) || !c.ok && !errors.Is(err, ErrSocketTaken) {
				t.Fatalf("%v", err)
			}
			if is, err := socketFileAt(path); !c.ok && (err != nil || is != was) {
				t.Errorf("it is gone or replaced: %v", err)
			}
		})
	}
}

// TestOnlyTheOwnSocketIsRemoved: a rank that ends removes its socket, and not what
// lies there by then.
func TestOnlyTheOwnSocketIsRemoved(t *testing.T) {
	r := newRig(t, 8<<20)
	for how, open := range map[string]func(path string) (*unixListener, error){
		"made": r.srv.listenUnix,
		"inherited": func(path string) (*unixListener, error) {
			l, err := net.Listen("unix", path)
			if err != nil {
				return nil, err
			}
			return inheritUnix(l.(*net.UnixListener)), nil
		},
	} {
		for name, change := range map[string]func(path string){
			"nothing":   nil,
			"a file":    func(p string) { os.Remove(p); _ = os.WriteFile(p, nil, 0o600) },
			"a socket":  func(p string) { os.Remove(p); unix.Close(bound(t, unix.SOCK_STREAM, p)) },
			"it is new": func(p string) { os.Rename(p, p+"-away"); unix.Close(bound(t, unix.SOCK_DGRAM, p)) },
		} {
			path := filepath.Join(t.TempDir(), "s")
			l, err := open(path)
			if err != nil {
				t.Fatal(err)
			}
			if change != nil {
				change(path)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); (err == nil) != (change != nil) {
				t.Errorf("%s, and then %s: %v", how, name, err)
			}
		}
	}
}

// TestInheritedSocketOfAnother: a listener of which the path leads elsewhere by now
// does not remove what is there.
func TestInheritedSocketOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	os.Remove(path)
	fd := bound(t, unix.SOCK_DGRAM, path)
	defer unix.Close(fd)
	if err := inheritUnix(l.(*net.UnixListener)).Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// TestShutdownLeavesWhatIsNotItsOwn is the same of a whole server.
func TestShutdownLeavesWhatIsNotItsOwn(t *testing.T) {
	r := newRig(t, 8<<20)
	if err := os.Remove(r.sock); err != nil {
		t.Fatal(err)
	}
	fd := bound(t, unix.SOCK_DGRAM, r.sock)
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := r.srv.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(r.sock); err != nil || !strings.HasPrefix(st.Mode().String(), "S") {
		t.Errorf("%v", err)
	}
}
