package server

import (
	"context"
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
	"cascadekv/internal/testing/testuser"
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
	for name, before := range map[string]os.FileMode{"new directory": 0, "left behind": 0o700} {
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
			newRig(t, 8<<20, func(o *Options) { o.Socket, o.AllowUIDs = sock, []int{testuser.Stranger} })
			if d, s := modeOf(t, dir), modeOf(t, sock); d != 0o711 || s != 0o666 {
				t.Errorf("directory %#o, socket %#o", d, s)
			}
			c := resp.NewClient(testuser.Dial(t, testuser.Stranger, net.Dialer{}, "unix", sock), 20*time.Second)
			if err := c.Set("k", []byte("v")); err != nil {
				t.Errorf("SET of a user of allow_uids: %v", err)
			}
			if _, err := c.Do("CASCADE.ARENA"); code(err) != "NOPERM" {
				t.Errorf("ARENA of a user of allow_uids: %v", err)
			}
			other := resp.NewClient(testuser.Dial(t, testuser.Stranger-1, net.Dialer{}, "unix", sock), 20*time.Second)
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
		o.Socket, o.AllowUIDs, o.Log = filepath.Join(dir, "s"), []int{testuser.Stranger}, slog.New(slog.NewTextHandler(&log, nil))
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
