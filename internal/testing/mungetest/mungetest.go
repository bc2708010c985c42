package mungetest

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/testneed"
)

// Start starts a munged that ends with the test, and returns its socket.
func Start(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("munged")
	if err != nil {
		program = "/usr/sbin/munged"
	}
	_, err = os.Stat(program)
	testneed.That(t, err == nil, "munged", "make tools")
	dir, err := os.MkdirTemp("", "cascade-munge-") // t.TempDir is too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the socket is for every user
		t.Fatal(err)
	}
	key := make([]byte, 128)
	_, _ = rand.Read(key) // it never fails
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "--force", "--key-file="+file("key"), "--socket="+file("socket"),
		"--pid-file="+file("pid"), "--log-file="+file("log"), "--seed-file="+file("seed")).CombinedOutput()
	if err != nil {
		t.Fatalf("munged: %v: %s", err, out)
	}
	t.Cleanup(func() { stop(t, file("pid")) })
	return file("socket")
}

// stop ends the munged of a pid file and waits for it.
func stop(t testing.TB, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Error(err)
		return
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if syscall.Kill(pid, syscall.SIGTERM) == syscall.ESRCH {
			return
		}
	}
	t.Errorf("munged, process %d, does not end", pid)
}
