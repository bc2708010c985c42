package members

import (
	"bytes"
	"context"
	"log/slog"
)

// logWriter passes memberlist's lines on, "[WARN] memberlist: text", at the
// level that they name.
type logWriter struct{ log *slog.Logger }

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
	w.log.Log(context.Background(), level, "gossip: "+string(text))
	return len(line), nil
}
