package members

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"time"

	"cascadekv/internal/loglimit"
)

// logWriter passes memberlist's lines on, "[WARN] memberlist: text", at the
// level that they name. Warnings and errors are bounded in number: memberlist
// has one for each packet that a stranger sends.
type logWriter struct {
	log   *slog.Logger
	limit *loglimit.Limiter
}

func newLogWriter(log *slog.Logger) logWriter { return logWriter{log, &loglimit.Limiter{}} }

// keepCounting logs, when strangers are quiet again, how many lines about them
// were left out.
func (m *Members) keepCounting() {
	tick := time.NewTicker(loglimit.DefaultEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if n := m.lines.limit.Rest(); n > 0 {
				m.log.Warn("gossip: more lines like the last ones were left out", "suppressed", n)
			}
			if n := m.transport.refused.Rest(); n > 0 {
				m.log.Warn("gossip: more streams were refused", "suppressed", n)
			}
		case <-m.stopped.Done():
			return
		}
	}
}

var levels = []struct {
	mark  string
	level slog.Level
}{
	{"[DEBUG] ", slog.LevelDebug},
	{"[INFO] ", slog.LevelInfo},
	{"[WARN] ", slog.LevelWarn},
	{"[ERR] ", slog.LevelError},
	{"[ERROR] ", slog.LevelError},
}

// Write takes one line. A refusal is one that this package has logged itself,
// once, while memberlist repeats it with every packet.
func (w logWriter) Write(line []byte) (int, error) {
	text, level := bytes.TrimSpace(line), slog.LevelError
	for _, l := range levels {
		if rest, ok := bytes.CutPrefix(text, []byte(l.mark)); ok {
			text, level = rest, l.level
			break
		}
	}
	text = bytes.TrimPrefix(text, []byte("memberlist: "))
	if bytes.HasPrefix(text, []byte("ignoring alive message")) {
		level = slog.LevelDebug
	}
	if level < slog.LevelWarn {
		w.log.Log(context.Background(), level, "gossip: "+string(text))
		return len(line), nil
	}
	suppressed, ok := w.limit.Allow(event(string(text)))
	if !ok {
		return len(line), nil
	}
	var counts []any
	if suppressed > 0 {
		counts = []any{"suppressed", suppressed}
	}
	w.log.Log(context.Background(), level, "gossip: "+string(text), counts...)
	return len(line), nil
}

// event is the part of a line of memberlist before its addresses, members
// and numbers.
func event(text string) string {
	if at := strings.IndexAny(text, `:"'(0123456789`); at > 0 {
		text = text[:at]
	}
	before, _, _ := strings.Cut(text, " from=")
	return before
}
