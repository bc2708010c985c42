package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/testing/testuser"
)

// TestServerOfAnotherUser: no verb sends a rank of another user anything, the
// password least of all, unless that user is listed.
func TestServerOfAnotherUser(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "root", "only root can act as another user")
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o777} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret-of-mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	heard := foreignRank(t, socket)
	own := startRank(t, &fakeRank{stats: someStats, password: "secret-of-mine"})
	trace := filepath.Join(dir, "trace.jsonl")
	line := `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}` + "\n"
	if err := os.WriteFile(trace, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"CASCADE_PASSWORD_FILE=" + password}
	for _, words := range [][]string{
		{"status"}, {"status", "--json"}, {"get", "k"}, {"put", "--key", "k", trace}, {"probe", "k"}, {"ring", "--key", "k"}, {"upgrade"}, {"doctor"},
		{"trace", "replay", "--trace", trace, "--block-bytes", "4KiB"},
		{"trace", "replay", "--trace", trace, "--block-bytes", "4KiB", "--sockets", own + "," + socket},
	} {
		if !slices.Contains(words, "--sockets") {
			words = append(words, "--socket", socket)
		}
		got := cascadeCommand("", env, words...)
		if said := got.out + got.err; got.status != cli.Failure || !strings.Contains(said, "uid 65534") || strings.Contains(said, "start one") {
			t.Errorf("%v: %+v", words, got)
		}
	}
	if bytes := heard(); bytes != "" {
		t.Errorf("a rank of another user was sent %q", bytes)
	}
	cascadeCommand("", append(env, "CASCADE_SERVER_UIDS=7,65534"), "get", "k", "--socket", socket)
	if bytes := heard(); !strings.Contains(bytes, "AUTH") {
		t.Errorf("a rank of a listed user was sent %q", bytes)
	}
}

// foreignRank listens as another user. heard returns what was sent since the
// last call.
func foreignRank(t *testing.T, socket string) (heard func() string) {
	t.Helper()
	l := testuser.Listen(t, testuser.Stranger, "unix", socket)
	sent := make(chan string, 1000)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p := make([]byte, 1<<10)
			n, _ := c.Read(p) // the client's end, if it sends nothing
			c.Close()
			sent <- string(p[:n])
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return func() string {
		const last = "that is all"
		c, err := net.Dial("unix", socket) // served after all that came before
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(last)); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for s := range sent {
			if s == last {
				break
			}
			b.WriteString(s)
		}
		return b.String()
	}
}
