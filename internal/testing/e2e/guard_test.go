package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testneed"
)

// nobody is a user that no rank of these tests belongs to.
const nobody = 65534

func TestTwoRanksOnOneArena(t *testing.T) {
	p := newPlace(t, "64MiB")
	r := start(t, p)
	c := r.dial(t)
	if err := c.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(place) place{
		"same arena":  func(p place) place { p.socket += "2"; return p },
		"same socket": func(p place) place { p.arena += "2"; return p },
	} {
		t.Run(name, func(t *testing.T) {
			other := change(p)
			t.Cleanup(func() {
				if other.arena != p.arena {
					os.Remove(other.arena)
				}
			})
			second := launch(t, other)
			wantStatus(t, second.status(t), 1, second.stderr)
			wantWords(t, second.stderr.String(), "another", "give this one another")
			wantValue(t, c, "k", "v")
		})
	}
}

func TestSocketIsItsOwnersOnly(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	st, err := os.Stat(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	if mode := st.Mode().Perm(); mode != 0o600 {
		t.Errorf("the socket's mode is %#o, want 0600", mode)
	}
	st, err = os.Stat(r.arena)
	if err != nil {
		t.Fatal(err)
	}
	if mode := st.Mode().Perm(); mode != 0o600 {
		t.Errorf("the arena's mode is %#o, want 0600", mode)
	}
}

// TestOtherUsersAreRefused tries both doors as another user, the socket even
// after somebody opened its mode to all.
func TestOtherUsersAreRefused(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	tcp := freePort(t)
	r := start(t, newPlace(t, "64MiB"), "--listen", tcp)
	if err := os.Chmod(r.socket, 0o666); err != nil {
		t.Fatal(err)
	}
	for network, addr := range map[string]string{"unix": r.socket, "tcp": tcp} {
		t.Run(network, func(t *testing.T) {
			if answer := pingAs(t, 0, network, addr); !strings.HasPrefix(answer, "+PONG") {
				t.Errorf("root hears %q, want PONG", answer)
			}
			if answer := pingAs(t, nobody, network, addr); !strings.HasPrefix(answer, "-ERR") {
				t.Errorf("another user hears %q, want a refusal", answer)
			}
		})
	}
	r.untilSays(t, "connection refused", "uid=65534", "allow_uids")
}

func TestAllowedUserIsServed(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	p := newPlace(t, "64MiB")
	p.socket = filepath.Join(p.dir, "made-by-the-rank", "rank.sock")
	r := start(t, p, "--allow-uids", "65534")
	if answer := pingAs(t, nobody, "unix", r.socket); !strings.HasPrefix(answer, "+PONG") {
		t.Errorf("a user of allow_uids hears %q, want PONG", answer)
	}
	if answer := pingAs(t, nobody-1, "unix", r.socket); !strings.HasPrefix(answer, "-ERR") {
		t.Errorf("another user hears %q, want a refusal", answer)
	}
}

// TestSocketInOthersReach refuses a directory in which others could put a
// socket of their own.
func TestSocketInOthersReach(t *testing.T) {
	p := newPlace(t, "64MiB")
	if err := os.Chmod(p.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	r := launch(t, p)
	wantStatus(t, r.status(t), 1, r.stderr)
	wantWords(t, r.stderr.String(), p.dir, "chmod 700")
}

func TestManyConnections(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	var conns []net.Conn
	for range 300 { // two LMCache processes with 150 each
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for _, c := range conns {
		if _, err := resp.NewClient(c, patience).Do("PING"); err != nil {
			t.Fatal(err)
		}
	}
}
