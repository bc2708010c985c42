package main

import (
	"io"
	"log/slog"

	"cascadekv/internal/config"
)

// newLogger writes to w in the configured form, with the rank and the job on
// every line.
func newLogger(c config.Config, level *slog.LevelVar, w io.Writer) *slog.Logger {
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

// levelOf reads a level that Validate has accepted.
func levelOf(word string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(word)) != nil {
		return slog.LevelInfo
	}
	return l
}
