package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/testing/testneed"
)

// TestUnreachable: the remedy for a rank that does not answer fits why.
func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path("left")})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path("datagrams")})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	for name, want := range map[string][]string{
		"none":      {"none answers at", "start one with cascaded --socket " + path("none")},
		"left":      {"a rank that has ended left the file", "start one"},
		"file":      {"is no socket of a rank", "name another"},
		"datagrams": {"is no socket of a rank", "name another"},
	} {
		for _, verb := range []string{"status", "doctor"} {
			got := cascadeCommand("", nil, verb, "--socket", path(name))
			for _, part := range want {
				if !strings.Contains(got.out+got.err, part) {
					t.Errorf("%s of %s: %q is not in %+v", verb, name, part, got)
				}
			}
			if start := strings.Contains(got.out+got.err, "start one"); start != strings.Contains(strings.Join(want, " "), "start one") {
				t.Errorf("%s of %s: %+v", verb, name, got)
			}
		}
	}
	if got := cascadeCommand("", nil, "status", "--socket", path("left"), "--timeout", "0"); got.status != cli.Usage || !strings.Contains(got.err, "above 0") {
		t.Errorf("no time at all: %+v", got)
	}
	late := explain("unix", path("left"), &net.OpError{Op: "dial", Err: context.DeadlineExceeded})
	if !strings.Contains(late.finding, "takes no connections") {
		t.Errorf("a rank that takes long: %+v", late)
	}
	if got := cascadeCommand("", nil, "doctor", "--socket", "127.0.0.1:1"); !strings.Contains(got.out, "cascaded --listen 127.0.0.1:1") {
		t.Errorf("a TCP address: %+v", got)
	}
}

// TestAnothersSocket: no remedy asks to start a rank where another user has one.
func TestAnothersSocket(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	const nobody = 65534
	dir, err := os.MkdirTemp("", "cascade-test-") // others may pass
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{filepath.Join(closed, "rank.sock"), filepath.Join(dir, "rank.sock")} {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(socket, 0o600); err != nil {
			t.Fatal(err)
		}
		u := asUser(t, nobody, func() unreachable {
			_, err := net.Dial("unix", socket)
			return explain("unix", socket, err)
		})
		if want := fmt.Sprintf("uid %d's", os.Geteuid()); !strings.Contains(u.finding, want) || !strings.Contains(u.remedy, "allow_uids") || strings.Contains(u.remedy, "start") {
			t.Errorf("%s: %q, %q", socket, u.finding, u.remedy)
		}
	}
}

// asUser calls f in a thread of another user, which ends with it.
func asUser(t *testing.T, uid uintptr, f func() unreachable) unreachable {
	t.Helper()
	result, failed := make(chan unreachable, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			failed <- errno
		} else if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			failed <- errno
		} else {
			result <- f()
		}
	}()
	select {
	case u := <-result:
		return u
	case err := <-failed:
		t.Fatal(err)
	}
	return unreachable{}
}
