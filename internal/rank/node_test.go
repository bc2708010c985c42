package rank

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
)

// What the limit of open files cuts is in the log, and obeyed.
func TestOpenFilesCutConnections(t *testing.T) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	c := config.Default()
	c.MaxConnections = 1
	if s := openFiles(c, log); s.Connections != 1 || text.Len() > 0 {
		t.Errorf("one connection: %+v, %s", s, &text)
	}
	c.MaxConnections = int(min(l.Max, 1<<40)) + 1
	s := openFiles(c, log)
	if uint64(s.Connections) >= l.Max || !strings.Contains(text.String(), "cuts max_connections") {
		t.Errorf("more connections than files: %+v, %s", s, &text)
	}
	if got := serverLimits(c, "", s); got.MaxConnections != s.Connections || got.Shared != s.Shared {
		t.Errorf("the server gets %+v of %+v", got, s)
	}
}
