package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/testing/testlog"
)

// fake is a rank whose calls show up on a channel.
type fake struct {
	calls    chan string
	serveErr chan error
	shutdown chan error
	stuck    bool
	drained  chan bool // when not nil: Shutdown waits for it
}

func newFake() *fake {
	return &fake{calls: make(chan string, 16), serveErr: make(chan error, 1), shutdown: make(chan error, 1)}
}

func (f *fake) Serve(ctx context.Context) error { f.calls <- "serve"; return <-f.serveErr }
func (f *fake) Reload(c config.Config, password string) {
	f.calls <- "reload " + c.Log.Level + " " + password
}
func (f *fake) ReloadFailed() { f.calls <- "refused" }
func (f *fake) Shutdown(ctx context.Context) error {
	f.calls <- "shutdown"
	if f.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	if f.drained != nil {
		<-f.drained
	}
	select {
	case err := <-f.shutdown:
		return err
	default:
		return nil
	}
}

func (f *fake) open(context.Context, config.Config, string, *slog.Logger) (rank, error) {
	return f, nil
}

type life struct {
	signals chan os.Signal
	status  chan int
	log     *testlog.Log
	clock   *clock
}

// clock is the time of a life. Who moves it waits for a read of it.
type clock struct {
	since atomic.Int64 // nanoseconds from an arbitrary start
	read  chan bool
}

func (c *clock) now() time.Time {
	defer func() { c.read <- true }()
	return time.Unix(1, c.since.Load())
}

func start(s config.Sources, open opener) life {
	l := life{signals: make(chan os.Signal), status: make(chan int, 1), log: &testlog.Log{}, clock: &clock{read: make(chan bool, 8)}}
	go func() { l.status <- run(context.Background(), s, open, l.signals, l.clock.now, l.log) }()
	return l
}

// signal sends a signal so much later than the one before.
func (l life) signal(t *testing.T, sig os.Signal, later time.Duration) {
	t.Helper()
	l.clock.since.Add(int64(later))
	patience := time.After(20 * time.Second)
	select {
	case l.signals <- sig:
	case <-patience:
		t.Fatalf("nobody reads %v; the log:\n%s", sig, l.log)
	}
	if sig == syscall.SIGHUP {
		return
	}
	select {
	case <-l.clock.read:
	case <-patience:
		t.Fatalf("%v has no time; the log:\n%s", sig, l.log)
	}
}

func (l life) ended(t *testing.T) int {
	t.Helper()
	select {
	case status := <-l.status:
		return status
	case <-time.After(20 * time.Second):
		t.Fatalf("it does not end; the log:\n%s", l.log)
	}
	return -1
}

func expect(t *testing.T, calls <-chan string, want string) {
	t.Helper()
	if got := <-calls; got != want {
		t.Fatalf("the rank was told %q, want %q", got, want)
	}
}

func TestSignals(t *testing.T) {
	for name, tc := range map[string]struct {
		shutdownErr error
		signals     []os.Signal
		status      int
		log         string
	}{
		"term drains": {signals: []os.Signal{syscall.SIGTERM}, status: exitOK, log: "cascaded ends"},
		"int drains":  {signals: []os.Signal{syscall.SIGINT}, status: exitOK, log: "cascaded ends"},
		"drain fails": {signals: []os.Signal{syscall.SIGTERM}, shutdownErr: errors.New("quota"), status: exitFailure, log: "quota"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			if tc.shutdownErr != nil {
				f.shutdown <- tc.shutdownErr
			}
			l := start(config.Sources{}, f.open)
			expect(t, f.calls, "serve")
			for _, sig := range tc.signals {
				l.signals <- sig
			}
			expect(t, f.calls, "shutdown")
			if got := <-l.status; got != tc.status || !strings.Contains(l.log.String(), tc.log) {
				t.Errorf("exit status %d, want %d; the log should contain %q:\n%s", got, tc.status, tc.log, l.log)
			}
			f.serveErr <- nil
		})
	}
}

// TestRepeatedSignals: a signal to end within seconds of the first is the same
// order, whichever of them it is and whatever the rank is at; a later one ends it
// without draining.
func TestRepeatedSignals(t *testing.T) {
	const soon, late = 30 * time.Millisecond, sameOrder
	t.Run("draining", func(t *testing.T) {
		for name, again := range map[string][]os.Signal{
			"term": {syscall.SIGTERM}, "int": {syscall.SIGINT}, "all of them": {syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGTERM},
		} {
			f := newFake()
			f.drained = make(chan bool)
			l := start(config.Sources{}, f.open)
			expect(t, f.calls, "serve")
			l.signal(t, syscall.SIGTERM, 0)
			expect(t, f.calls, "shutdown")
			for _, sig := range again {
				l.signal(t, sig, soon)
			}
			close(f.drained)
			if got := l.ended(t); got != exitOK || !l.log.Has("cascaded ends") {
				t.Errorf("%s: exit status %d; the log:\n%s", name, got, l.log)
			}
			f.serveErr <- nil
		}
	})
	t.Run("a later one", func(t *testing.T) {
		f := newFake()
		f.stuck = true
		l := start(config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		l.signal(t, syscall.SIGTERM, 0)
		expect(t, f.calls, "shutdown")
		l.signal(t, syscall.SIGTERM, soon)
		l.signal(t, syscall.SIGINT, late)
		if got := l.ended(t); got != exitFailure || !l.log.Has("second signal") {
			t.Errorf("exit status %d; the log:\n%s", got, l.log)
		}
		f.serveErr <- nil
	})
	t.Run("the first of a drain that nobody ordered", func(t *testing.T) {
		f := newFake()
		f.drained = make(chan bool)
		f.serveErr <- errors.New("accept: too many open files")
		l := start(config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		expect(t, f.calls, "shutdown")
		l.signal(t, syscall.SIGTERM, late)
		close(f.drained)
		if got := l.ended(t); got != exitFailure || l.log.Has("second signal") {
			t.Errorf("exit status %d; the log:\n%s", got, l.log)
		}
	})
	t.Run("opening", func(t *testing.T) {
		entered, opened := make(chan bool), make(chan bool)
		f := newFake()
		l := start(config.Sources{}, func(context.Context, config.Config, string, *slog.Logger) (rank, error) {
			close(entered)
			<-opened
			return f, nil
		})
		<-entered
		l.signal(t, syscall.SIGTERM, 0)
		l.signal(t, syscall.SIGTERM, soon)
		l.signal(t, syscall.SIGINT, soon)
		close(opened)
		expect(t, f.calls, "shutdown")
		if got := l.ended(t); got != exitOK {
			t.Errorf("exit status %d; the log:\n%s", got, l.log)
		}
	})
	t.Run("opening, a later one", func(t *testing.T) {
		entered := make(chan bool)
		l := start(config.Sources{}, func(ctx context.Context, _ config.Config, _ string, _ *slog.Logger) (rank, error) {
			close(entered)
			<-make(chan bool) // an opener that hangs
			return nil, nil
		})
		<-entered
		l.signal(t, syscall.SIGTERM, 0)
		l.signal(t, syscall.SIGTERM, late)
		if got := l.ended(t); got != exitFailure {
			t.Errorf("exit status %d; the log:\n%s", got, l.log)
		}
	})
}

// TestReloadWhileOpening: what changed while the rank opens counts once it is open.
func TestReloadWhileOpening(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	f, begun, ready := newFake(), make(chan struct{}), make(chan struct{})
	l := start(config.Sources{File: file}, func(context.Context, config.Config, string, *slog.Logger) (rank, error) {
		close(begun)
		<-ready
		return f, nil
	})
	<-begun
	write("log.level = \"debug\"\n")
	l.signals <- syscall.SIGHUP
	close(ready)
	expect(t, f.calls, "reload debug ")
	expect(t, f.calls, "serve")
	l.signals <- syscall.SIGTERM
	expect(t, f.calls, "shutdown")
	<-l.status
	f.serveErr <- nil
}

func TestReloadBySignal(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "pw")
	file := filepath.Join(dir, "c.toml")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, "p4ssw0rd-1\n")
	write(file, "password_file = \""+secret+"\"\n")
	f := newFake()
	l := start(config.Sources{File: file}, f.open)
	expect(t, f.calls, "serve")

	write(secret, "p4ssw0rd-2\n")
	write(file, "log.level = \"debug\"\npassword_file = \""+secret+"\"\n")
	l.signals <- syscall.SIGHUP
	expect(t, f.calls, "reload debug p4ssw0rd-2")

	write(file, "log.level = \"error\"\nrank = 3\npassword_file = \""+secret+"\"\n")
	l.signals <- syscall.SIGHUP
	expect(t, f.calls, "refused")

	write(file, "log.levl = \"error\"\n")
	l.signals <- syscall.SIGHUP
	expect(t, f.calls, "refused")

	l.signals <- syscall.SIGTERM
	expect(t, f.calls, "shutdown")
	<-l.status
	f.serveErr <- nil
	for _, want := range []string{"rank", "log.levl", "log.level", "the password", "reloaded"} {
		if !strings.Contains(l.log.String(), want) {
			t.Errorf("the log does not contain %q:\n%s", want, l.log)
		}
	}
	for _, never := range []string{"p4ssw0rd"} {
		if strings.Contains(l.log.String(), never) {
			t.Errorf("the log contains the secret %q:\n%s", never, l.log)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Run("serving ends", func(t *testing.T) {
		f := newFake()
		f.serveErr <- errors.New("accept: too many open files")
		l := start(config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		expect(t, f.calls, "shutdown")
		if got := <-l.status; got != exitFailure || !strings.Contains(l.log.String(), "too many open files") {
			t.Errorf("exit status %d\n%s", got, l.log)
		}
	})
	t.Run("cannot open", func(t *testing.T) {
		l := start(config.Sources{}, func(context.Context, config.Config, string, *slog.Logger) (rank, error) {
			return nil, errors.New("no such directory")
		})
		if got := <-l.status; got != exitFailure || !strings.Contains(l.log.String(), "no such directory") {
			t.Errorf("exit status %d\n%s", got, l.log)
		}
	})
	t.Run("stopped while opening", func(t *testing.T) {
		entered := make(chan bool)
		l := start(config.Sources{}, func(ctx context.Context, _ config.Config, _ string, _ *slog.Logger) (rank, error) {
			close(entered)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		<-entered
		l.signals <- syscall.SIGTERM
		if got := <-l.status; got != exitOK {
			t.Errorf("exit status %d\n%s", got, l.log)
		}
	})
	t.Run("bad configuration", func(t *testing.T) {
		l := start(config.Sources{Env: []string{"CASCADE_POLICY=fifo"}}, newFake().open)
		if got := <-l.status; got != exitUsage || !strings.Contains(l.log.String(), "environment CASCADE_POLICY") {
			t.Errorf("exit status %d\n%s", got, l.log)
		}
	})
}

func TestCommandLine(t *testing.T) {
	var got config.Sources
	command := newCommand(func(s config.Sources) { got = s })
	command.SetArgs([]string{"--socket", "/tmp/s", "--listen=127.0.0.1:7000", "--shm-bytes", "4GiB", "--lustre-dir", "/l",
		"--rank", "2", "--policy", "lru", "--verify-reads", "--config", "/c.toml"})
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"socket": "/tmp/s", "listen": "127.0.0.1:7000", "shm.bytes": "4GiB", "lustre.dir": "/l",
		"rank": "2", "policy": "lru", "verify_reads": "true"}
	if len(got.Flags) != len(want) || got.File != "/c.toml" {
		t.Fatalf("got %v and file %q", got.Flags, got.File)
	}
	for path, text := range want {
		if got.Flags[path] != text {
			t.Errorf("%s = %q, want %q", path, got.Flags[path], text)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{"unknown flag": {"--shm-byte", "1"}, "argument": {"start"}} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if got := realMain(args, nil, &bytes.Buffer{}, &stderr); got != exitUsage || !strings.Contains(stderr.String(), "--help") {
				t.Errorf("exit status %d: %s", got, &stderr)
			}
		})
	}
}
