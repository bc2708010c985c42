package main

import (
	"bytes"
	"io"
	"log/slog"
	"time"

	"cascadekv/internal/config"
)

// logPatience is how long a log line waits for the reader of standard error.
const logPatience = time.Second

// newLogger writes to w in the configured form, with the rank and the job on
// every line.
func newLogger(c config.Config, level *slog.LevelVar, w io.Writer) *slog.Logger {
	logTo := func(w io.Writer) *slog.Logger {
		options := &slog.HandlerOptions{Level: level}
		var h slog.Handler = slog.NewTextHandler(w, options)
		if c.Log.Format == "json" {
			h = slog.NewJSONHandler(w, options)
		}
		log := slog.New(h).With("rank", c.Rank)
		if c.Job != "" {
			log = log.With("job", c.Job)
		}
		return log
	}
	return logTo(&logWriter{w: w, patience: logPatience, logTo: logTo})
}

// logWriter writes lines to w and waits for each, but not longer than patience:
// a terminal that is stopped, or a pipe that nobody reads, must not keep a rank
// from its clients or from its end. Lines that come while one is still on its way
// are dropped, and the next one that is written comes after a line with their
// number. It serves one caller at a time, as slog's handlers do.
type logWriter struct {
	w        io.Writer
	patience time.Duration
	logTo    func(io.Writer) *slog.Logger
	pending  chan error // has the result of a line that was not waited for; nil: none
	dropped  int
}

// Write implements io.Writer. It returns no error for a line that is dropped.
func (l *logWriter) Write(line []byte) (int, error) {
	if l.pending != nil {
		select {
		case <-l.pending:
			l.pending = nil
		default:
			l.dropped++
			return len(line), nil
		}
	}
	var text bytes.Buffer // the caller uses line again
	if l.dropped > 0 {
		l.logTo(&text).Warn("log lines dropped: nobody read standard error", "lines", l.dropped)
		l.dropped = 0
	}
	text.Write(line)
	written := make(chan error, 1)
	go func() {
		_, err := l.w.Write(text.Bytes())
		written <- err
	}()
	patience := time.NewTimer(l.patience)
	defer patience.Stop()
	select {
	case err := <-written:
		return len(line), err
	case <-patience.C:
		l.pending = written
		return len(line), nil
	}
}

// levelOf reads a level that Validate has accepted.
func levelOf(word string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(word)) != nil {
		return slog.LevelInfo
	}
	return l
}
