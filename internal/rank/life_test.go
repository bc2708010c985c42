package rank

import (
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

func (f *fake) open(context.Context, config.Config, string) (Running, error) {
	return f, nil
}

// running is a call of Run.
type running struct {
	signals chan os.Signal
	result  chan error
	log     *testlog.Log
	clock   *clock
}

// clock is the time of a run. Who moves it waits for a read of it.
type clock struct {
	since atomic.Int64 // nanoseconds from an arbitrary start
	read  chan bool
}

func (c *clock) now() time.Time {
	defer func() { c.read <- true }()
	return time.Unix(1, c.since.Load())
}

func start(t *testing.T, s config.Sources, open func(context.Context, config.Config, string) (Running, error), change ...func(*RunOptions)) running {
	t.Helper()
	loaded, password, err := Load(s)
	if err != nil {
		t.Fatal(err)
	}
	r := running{signals: make(chan os.Signal), result: make(chan error, 1), log: &testlog.Log{}, clock: &clock{read: make(chan bool, 8)}}
	level := new(slog.LevelVar)
	o := RunOptions{
		Sources: s, Loaded: loaded, Password: password, Open: open, Signals: r.signals, Now: r.clock.now,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: level})),
	}
	for _, f := range change {
		f(&o)
	}
	go func() { r.result <- Run(context.Background(), o) }()
	return r
}

// signal sends a signal so much later than the one before.
func (l running) signal(t *testing.T, sig os.Signal, later time.Duration) {
	t.Helper()
	l.clock.since.Add(int64(later))
	patience := time.After(20 * time.Second)
	select {
	case l.signals <- sig:
	case <-patience:
		t.Fatalf("nobody reads %v; the log:\n%s", sig, l.log)
	}
	if sig == syscall.SIGHUP || sig == StepLost {
		return
	}
	select {
	case <-l.clock.read:
	case <-patience:
		t.Fatalf("%v has no time; the log:\n%s", sig, l.log)
	}
}

func (l running) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.result:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("it does not end; the log:\n%s", l.log)
	}
	return nil
}

func expect(t *testing.T, calls <-chan string, want string) {
	t.Helper()
	if got := <-calls; got != want {
		t.Fatalf("the rank got %q, want %q", got, want)
	}
}

func TestSignals(t *testing.T) {
	for name, tc := range map[string]struct {
		shutdownErr error
		signals     []os.Signal
		ok          bool
		log         string
	}{
		"term drains": {signals: []os.Signal{syscall.SIGTERM}, ok: true, log: "cascaded ends"},
		"int drains":  {signals: []os.Signal{syscall.SIGINT}, ok: true, log: "cascaded ends"},
		"drain fails": {signals: []os.Signal{syscall.SIGTERM}, shutdownErr: errors.New("quota"), log: "quota"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			if tc.shutdownErr != nil {
				f.shutdown <- tc.shutdownErr
			}
			l := start(t, config.Sources{}, f.open)
			expect(t, f.calls, "serve")
			for _, sig := range tc.signals {
				l.signals <- sig
			}
			expect(t, f.calls, "shutdown")
			if got := <-l.result; (got == nil) != tc.ok || !strings.Contains(l.log.String(), tc.log) {
				t.Errorf("got %v, want success: %v; the log should contain %q:\n%s", got, tc.ok, tc.log, l.log)
			}
			f.serveErr <- nil
		})
	}
}

// TestRepeatedSignals: a signal to end within seconds of the first is the same
// order, whichever of them it is and whatever the rank is at; a later one ends it
// without draining.
func TestRepeatedSignals(t *testing.T) {
	const soon, late = 30 * time.Millisecond, SameOrder
	t.Run("draining", func(t *testing.T) {
		for name, again := range map[string][]os.Signal{
			"term": {syscall.SIGTERM}, "int": {syscall.SIGINT}, "all of them": {syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGTERM},
		} {
			f := newFake()
			f.drained = make(chan bool)
			l := start(t, config.Sources{}, f.open)
			expect(t, f.calls, "serve")
			l.signal(t, syscall.SIGTERM, 0)
			expect(t, f.calls, "shutdown")
			for _, sig := range again {
				l.signal(t, sig, soon)
			}
			close(f.drained)
			if got := l.ended(t); got != nil || !l.log.Has("cascaded ends") {
				t.Errorf("%s: got %v; the log:\n%s", name, got, l.log)
			}
			f.serveErr <- nil
		}
	})
	t.Run("a later one", func(t *testing.T) {
		f := newFake()
		f.stuck = true
		l := start(t, config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		l.signal(t, syscall.SIGTERM, 0)
		expect(t, f.calls, "shutdown")
		l.signal(t, syscall.SIGTERM, soon)
		l.signal(t, syscall.SIGINT, late)
		if got := l.ended(t); got == nil || !l.log.Has("second signal") {
			t.Errorf("got %v; the log:\n%s", got, l.log)
		}
		f.serveErr <- nil
	})
	t.Run("the first of a drain that nobody ordered", func(t *testing.T) {
		f := newFake()
		f.drained = make(chan bool)
		f.serveErr <- errors.New("accept: too many open files")
		l := start(t, config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		expect(t, f.calls, "shutdown")
		l.signal(t, syscall.SIGTERM, late)
		close(f.drained)
		if got := l.ended(t); got == nil || l.log.Has("second signal") {
			t.Errorf("got %v; the log:\n%s", got, l.log)
		}
	})
	t.Run("a lost step", func(t *testing.T) {
		for name, signals := range map[string][]os.Signal{"before": {StepLost, syscall.SIGTERM}, "after": {syscall.SIGTERM, StepLost}} {
			f := newFake()
			f.drained = make(chan bool)
			l := start(t, config.Sources{}, f.open)
			expect(t, f.calls, "serve")
			for _, sig := range signals {
				l.signal(t, sig, late)
			}
			expect(t, f.calls, "shutdown")
			close(f.drained)
			if got := l.ended(t); got != nil || l.log.Has("second signal") {
				t.Errorf("%s a signal: got %v; the log:\n%s", name, got, l.log)
			}
			f.serveErr <- nil
		}
	})
	t.Run("opening", func(t *testing.T) {
		entered, opened := make(chan bool), make(chan bool)
		f := newFake()
		l := start(t, config.Sources{}, func(context.Context, config.Config, string) (Running, error) {
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
		if got := l.ended(t); got != nil {
			t.Errorf("got %v; the log:\n%s", got, l.log)
		}
	})
	t.Run("opening, a later one", func(t *testing.T) {
		entered := make(chan bool)
		l := start(t, config.Sources{}, func(ctx context.Context, _ config.Config, _ string) (Running, error) {
			close(entered)
			<-make(chan bool) // an opener that hangs
			return nil, nil
		})
		<-entered
		l.signal(t, syscall.SIGTERM, 0)
		l.signal(t, syscall.SIGTERM, late)
		if got := l.ended(t); got == nil {
			t.Errorf("got %v; the log:\n%s", got, l.log)
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
	l := start(t, config.Sources{File: file}, func(context.Context, config.Config, string) (Running, error) {
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
	<-l.result
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
	l := start(t, config.Sources{File: file}, f.open)
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
	<-l.result
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
		l := start(t, config.Sources{}, f.open)
		expect(t, f.calls, "serve")
		expect(t, f.calls, "shutdown")
		if got := <-l.result; got == nil || !strings.Contains(l.log.String(), "too many open files") {
			t.Errorf("got %v\n%s", got, l.log)
		}
	})
	t.Run("cannot open", func(t *testing.T) {
		l := start(t, config.Sources{}, func(context.Context, config.Config, string) (Running, error) {
			return nil, errors.New("no such directory")
		})
		if got := <-l.result; got == nil || !strings.Contains(l.log.String(), "no such directory") {
			t.Errorf("got %v\n%s", got, l.log)
		}
	})
	t.Run("stopped while opening", func(t *testing.T) {
		entered := make(chan bool)
		l := start(t, config.Sources{}, func(ctx context.Context, _ config.Config, _ string) (Running, error) {
			close(entered)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		<-entered
		l.signals <- syscall.SIGTERM
		if got := <-l.result; got != nil {
			t.Errorf("got %v\n%s", got, l.log)
		}
	})
}

// TestOpeningInTime: an opening that hangs is given up when a signal calls it off,
// and one that ends in time is drained.
func TestOpeningInTime(t *testing.T) {
	soon := func(o *RunOptions) { o.OpenTimeout = 10 * time.Millisecond }
	hangs, entered := make(chan struct{}), make(chan bool)
	defer close(hangs)
	l := start(t, config.Sources{}, func(context.Context, config.Config, string) (Running, error) {
		close(entered)
		<-hangs
		return nil, nil
	}, soon)
	<-entered
	select {
	case err := <-l.result:
		t.Fatalf("it was given up before it was called off: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	l.signal(t, syscall.SIGTERM, 0)
	if err := l.ended(t); err != nil || !l.log.Has("it is given up") {
		t.Errorf("%v; the log:\n%s", err, l.log)
	}

	f := newFake()
	l = start(t, config.Sources{}, func(ctx context.Context, _ config.Config, _ string) (Running, error) {
		<-ctx.Done()
		time.Sleep(10 * time.Millisecond)
		return f, nil
	}, func(o *RunOptions) { o.OpenTimeout = time.Minute })
	l.signal(t, syscall.SIGTERM, 0)
	expect(t, f.calls, "shutdown")
	if err := l.ended(t); err != nil {
		t.Errorf("%v; the log:\n%s", err, l.log)
	}
}
