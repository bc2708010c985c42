package netio

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/need"
)

// stranger is a user whom no socket of these tests belongs to.
const stranger = 65534

func at(path string) UnixOptions {
	return UnixOptions{Path: path, Log: slog.New(slog.DiscardHandler)}
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
			path := filepath.Join(t.TempDir(), "s")
			c.put(t, path)
			was, _ := socketFileAt(path)
			l, err := at(path).listen()
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
	for how, open := range map[string]func(path string) (*ownedListener, error){
		"made": func(path string) (*ownedListener, error) { return at(path).listen() },
		"inherited": func(path string) (*ownedListener, error) {
			l, err := net.Listen("unix", path)
			if err != nil {
				return nil, err
			}
			return own(l.(*net.UnixListener)), nil
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
	if err := own(l.(*net.UnixListener)).Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// The owner of a link can make it lead to another directory while the rank
// serves in the first one.
func TestSocketDirectoryBehindTheLinkOfAnotherUser(t *testing.T) {
	need.That(t, os.Geteuid() == 0, "root", "run this test as root: it makes links of another user")
	base := t.TempDir()
	link := filepath.Join(base, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(base, "dir"), 0o700), os.Symlink("dir", link)); err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(at(filepath.Join(link, "own")))
	if err != nil {
		t.Fatalf("a link of this user: %v", err)
	}
	_ = l.Close()
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(link, "s"), filepath.Join(link, "to-be-made", "s")} {
		if l, err := ListenUnix(at(path)); !errors.Is(err, ErrUnsafeSocket) {
			_ = l.Close()
			t.Errorf("%s: %v", path, err)
		}
	}
	if made, err := filepath.Glob(filepath.Join(base, "dir", "*")); err != nil || len(made) > 0 {
		t.Errorf("left behind the link: %v, %v", made, err)
	}
}
