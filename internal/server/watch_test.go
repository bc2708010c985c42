package server

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
)

// TestSocketComesBack removes the socket file: the server listens there again, those who were connected stay, and its end removes the
// file.
func TestSocketComesBack(t *testing.T) {
	r := newRig(t, 16<<20)
	before := r.client("unix")
	if err := before.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.Remove(r.sock); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a socket", func() bool {
			c, err := resp.Dial("unix", r.sock, time.Second)
			if err != nil {
				return false
			}
			defer c.Close()
			got := make([]byte, 1)
			n, err := c.Get("k", got)
			return err == nil && string(got[:n]) == "v"
		})
		if st, err := os.Stat(r.sock); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
	}
	if err := before.Set("k", []byte("w")); err != nil {
		t.Error(err)
	}
}

// TestSocketOfOthersStays: what has taken the socket's path is neither replaced nor
// removed, at the end neither; once it goes the listener is back.
func TestSocketOfOthersStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	said := &testlog.Log{}
	s := &Server{opt: Options{Socket: path}, log: slog.New(slog.NewTextHandler(said, nil))}
	l, err := s.listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	w := s.watch(l)
	replace := func() net.Listener {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		other, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close() })
		return other
	}
	first := replace()
	for range 3 {
		w.look()
	}
	if n := strings.Count(said.String(), "something else"); n != 1 {
		t.Errorf("it is said %d times: %s", n, said)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err != nil {
		t.Errorf("the other one's socket: %v", err)
	} else {
		c.Close()
	}
	first.Close()
	w.look()
	if !said.Has("listening there again") {
		t.Errorf("it is not back: %s", said)
	}
	replace()
	w.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the end of the listener: %v", err)
	}
}
