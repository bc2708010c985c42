package netio

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/said"
)

// TestSocketOfOthersStays: what has taken the socket's path is neither replaced nor
// removed, at the end neither; once it goes the listener is back.
func TestSocketOfOthersStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	log := &said.Log{}
	w, err := ListenUnix(UnixOptions{Path: path, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
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
		w.check()
	}
	if n := strings.Count(log.String(), "something else"); n != 1 {
		t.Errorf("it is said %d times: %s", n, log)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err != nil {
		t.Errorf("the other one's socket: %v", err)
	} else {
		c.Close()
	}
	first.Close()
	w.check()
	if !log.Has("listening there again") {
		t.Errorf("it is not back: %s", log)
	}
	replace()
	w.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the end of the listener: %v", err)
	}
}
