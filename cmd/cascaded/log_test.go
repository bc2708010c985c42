package main

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/rank"
)

// stoppedPipe returns both ends of a pipe that has no room until it is read.
func stoppedPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	if err := w.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for err == nil {
		_, err = w.Write(line)
	}
	if err := w.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// idle is a rank without work.
type idle struct{ end chan struct{} }

func (r idle) Serve(context.Context) error    { <-r.end; return nil }
func (r idle) Reload(config.Config, string)   {}
func (r idle) ReloadFailed()                  {}
func (r idle) Shutdown(context.Context) error { close(r.end); return nil }

func TestRankEndsThoughNobodyReadsItsLog(t *testing.T) {
	_, w := stoppedPipe(t)
	loaded, _, err := rank.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	log := newLogger(loaded.Config, new(slog.LevelVar), w)
	signals, result := make(chan os.Signal), make(chan error, 1)
	go func() {
		logStart(log, loaded)
		result <- rank.Run(context.Background(), rank.RunOptions{
			Loaded: loaded, Signals: signals, Log: log,
			Open: func(context.Context, config.Config, string) (rank.Running, error) {
				return idle{make(chan struct{})}, nil
			},
		})
	}()
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		select {
		case signals <- sig:
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody reads %v", sig)
		}
	}
	select {
	case err := <-result:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
}

func TestDroppedLogLinesAreCounted(t *testing.T) {
	r, w := stoppedPipe(t)
	log := newLogger(config.Default(), new(slog.LevelVar), w)
	for _, text := range []string{"waits", "dropped", "dropped too"} {
		log.Info(text)
	}
	lines := make(chan string, 1024)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			if !strings.Contains(s.Text(), "xxx") {
				lines <- s.Text()
			}
		}
	}()
	var got []string
	for deadline := time.Now().Add(20 * time.Second); len(got) < 3; {
		select {
		case line := <-lines:
			got = append(got, line)
		case <-time.After(50 * time.Millisecond):
			log.Info("again") // dropped too until the first one has been written
		}
		if time.Now().After(deadline) {
			t.Fatalf("no more lines after %q", got)
		}
	}
	for i, want := range []string{"msg=waits", "log lines dropped", "msg=again"} {
		if !strings.Contains(got[i], want) || !strings.Contains(got[i], "rank=0") {
			t.Errorf("line %d is %q, not %q", i, got[i], want)
		}
	}
}
