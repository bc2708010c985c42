package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/testing/testlog"
)

// launched is a cascade launch.
type launched struct {
	cmd   *exec.Cmd
	words *testlog.Log // of the launcher and its engine
	log   string       // of the ranks
	ended chan struct{}
}

// launchEngine runs cascade launch at a place, outside Slurm. engine is a script of
// sh; "" is none.
func launchEngine(t *testing.T, p place, engine string, flags ...string) *launched {
	t.Helper()
	l := &launched{words: &testlog.Log{}, log: filepath.Join(p.dir, "ranks.log"), ended: make(chan struct{})}
	args := append([]string{"launch", "--log", l.log, "--dir", p.dir}, flags...)
	if engine != "" {
		args = append(args, "--", "sh", "-c", engine)
	}
	l.cmd = exec.Command(program("cascade"), args...)
	l.cmd.Env = append(launcherEnv(nil), "CASCADE_SOCKET="+p.socket, "CASCADE_SHM_PATH="+p.arena, "CASCADE_SHM_BYTES="+p.shm,
		"CASCADE_LUSTRE_DIR="+p.lustre, "CASCADE_LUSTRE_INDEX="+filepath.Join(p.dir, "index"), "CLI="+program("cascade"))
	l.cmd.Stdout, l.cmd.Stderr = l.words, l.words
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = l.cmd.Wait() // the status is in ProcessState
		close(l.ended)
	}()
	t.Cleanup(func() {
		_ = l.cmd.Process.Signal(syscall.SIGTERM)
		<-l.ended
		if t.Failed() {
			ranks, _ := os.ReadFile(l.log)
			t.Logf("cascade launch:\n%s\nits ranks:\n%s", l.words, tailOf(string(ranks)))
		}
	})
	return l
}

// status waits for the end and returns the exit status.
func (l *launched) status(t *testing.T) int {
	t.Helper()
	until(t, "end of cascade launch", func() bool {
		select {
		case <-l.ended:
			return true
		default:
			return false
		}
	})
	return l.cmd.ProcessState.ExitCode()
}

// leavesNothing fails the test if a launch left an arena, a socket or a secret.
func leavesNothing(t *testing.T, p place) {
	t.Helper()
	for _, pattern := range []string{strings.TrimSuffix(p.arena, ".arena") + "*", filepath.Join(p.dir, "*.sock"), filepath.Join(p.dir, ".cascade-*"), filepath.Join(p.dir, "lustre", ".cascade-*")} {
		if left, err := filepath.Glob(pattern); len(left) > 0 || err != nil {
			t.Errorf("%s is left, %v", left, err)
		}
	}
}

// TestLaunchStatus: the exit status is the engine's, and nothing is left.
func TestLaunchStatus(t *testing.T) {
	for name, c := range map[string]struct {
		engine string
		status int
	}{
		"status": {`echo value | "$CLI" put --key k >/dev/null && test "$("$CLI" get k)" = value && exit 7`, 7},
		"signal": {`kill -KILL $$`, 128 + 9},
		"good":   {`test "$PYTHONHASHSEED" = 0 && test -n "$KV_TRANSFER_CONFIG" && grep -q "unix://$CASCADE_SOCKET" "$LMCACHE_CONFIG_FILE"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "16MiB").withLustre()
			l := launchEngine(t, p, c.engine)
			if got := l.status(t); got != c.status {
				t.Errorf("exit status %d, want %d", got, c.status)
			}
			leavesNothing(t, p)
		})
	}
	t.Run("not found", func(t *testing.T) {
		p := newPlace(t, "16MiB")
		if got := launchEngine(t, p, "", "--", "/nowhere/vllm").status(t); got != 127 {
			t.Errorf("exit status %d, want 127", got)
		}
		leavesNothing(t, p)
	})
}

// TestLaunchSignals: signals go to the engine, and what it put is drained after it.
func TestLaunchSignals(t *testing.T) {
	p := newPlace(t, "16MiB").withLustre()
	l := launchEngine(t, p, `trap 'echo notice' USR1; trap 'echo end; exit 3' TERM
		head -c 100000 /dev/zero >"$CASCADE_SOCKET.bytes"; "$CLI" put --key k "$CASCADE_SOCKET.bytes"; echo up
		while :; do sleep 0.05; done`)
	until(t, "engine", func() bool { return l.words.Has("up\n") })
	if err := l.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	until(t, "notice", func() bool { return l.words.Has("notice\n") })
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := l.status(t); got != 3 || !l.words.Has("end\n") {
		t.Errorf("exit status %d, want 3", got)
	}
	leavesNothing(t, p)
	r := start(t, p)
	value := make([]byte, 100000)
	if n, err := r.dial(t).Get("k", value); n != len(value) || err != nil || !bytes.Equal(value, make([]byte, len(value))) {
		t.Errorf("the next rank has %d bytes of the engine's, %v", n, err)
	}
}

// TestLaunchGrace: an engine that does not end is killed, in time for the drain.
func TestLaunchGrace(t *testing.T) {
	p := newPlace(t, "16MiB")
	l := launchEngine(t, p, `trap '' TERM; echo up; while :; do sleep 0.05; done`, "--grace", "100ms")
	until(t, "engine", func() bool { return l.words.Has("up\n") })
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := l.status(t); got != 128+9 {
		t.Errorf("exit status %d, want %d", got, 128+9)
	}
	leavesNothing(t, p)
}

// TestLaunchWithoutEngine runs ranks until a signal.
func TestLaunchWithoutEngine(t *testing.T) {
	p := newPlace(t, "16MiB")
	l := launchEngine(t, p, "")
	until(t, "rank", func() bool { return l.words.Has("one cache") })
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := l.status(t); got != 0 {
		t.Errorf("exit status %d", got)
	}
	leavesNothing(t, p)
}

// TestLaunchRankDies: the engine goes on, and its status is kept.
func TestLaunchRankDies(t *testing.T) {
	p := newPlace(t, "16MiB")
	l := launchEngine(t, p, `echo up; until test -f "$CASCADE_SOCKET.go"; do sleep 0.05; done; exit 5`)
	until(t, "engine", func() bool { return l.words.Has("up\n") })
	if err := syscall.Kill(listener(t, p.socket), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "word of it", func() bool { return l.words.Has("the engine goes on") })
	if err := os.WriteFile(p.socket+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.status(t); got != 5 {
		t.Errorf("exit status %d, want 5", got)
	}
}

// TestLaunchFails: without ranks the engine is not started, and the reason is shown.
func TestLaunchFails(t *testing.T) {
	p := newPlace(t, "16MiB")
	started := filepath.Join(p.dir, "started")
	p.arena = filepath.Join(p.dir, "no", "folder", "arena")
	l := launchEngine(t, p, "touch "+started)
	if got := l.status(t); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	wantWords(t, l.words.String(), "they have ended", l.log, "cannot start")
	if _, err := os.Stat(started); err == nil {
		t.Error("the engine was started")
	}
	// Nor beside the rank of somebody else.
	other := start(t, newPlace(t, "16MiB"))
	p.socket = other.socket
	l = launchEngine(t, p, "touch "+started)
	if got := l.status(t); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the engine was started beside another rank")
	}
	wantWords(t, l.words.String(), "another rank serves")
	// A mistake of the command line starts nothing.
	l = launchEngine(t, p, "touch "+started, "--mpi", "pmix")
	if got := l.status(t); got != 2 {
		t.Errorf("exit status %d for a mistake, want 2", got)
	}
	wantWords(t, l.words.String(), "built without MPI")
}

// TestLaunchTwice: a second launch at the same socket fails, and leaves the engine of the first its files; one at another
// socket has files of its own.
func TestLaunchTwice(t *testing.T) {
	p := newPlace(t, "16MiB")
	stop := filepath.Join(p.dir, "stop")
	engine := `grep -o unix:.*sock $LMCACHE_CONFIG_FILE; until [ -e ` + stop + ` ]; do sleep .05; done; grep -o unix:.*sock $LMCACHE_CONFIG_FILE`
	first := launchEngine(t, p, engine)
	until(t, "the first engine runs", func() bool { return strings.Contains(first.words.String(), "unix:") })
	if got := launchEngine(t, p, "true").status(t); got != 1 {
		t.Errorf("a second launch at the same socket ends with %d", got)
	}
	other := newPlace(t, "16MiB")
	other.dir = p.dir
	if got := launchEngine(t, other, "true", "--log", filepath.Join(p.dir, "other.log")).status(t); got != 0 {
		t.Errorf("a launch at another socket ends with %d", got)
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := first.status(t); got != 0 || strings.Count(first.words.String(), p.socket) < 3 {
		t.Errorf("the first engine ends with %d:\n%s", got, first.words)
	}
}
