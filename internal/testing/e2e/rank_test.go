package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/nodeaddr"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
)

// place is where a rank keeps what outlives it. Several ranks in turn may use
// one place.
type place struct {
	dir    string // of the socket and the configuration; others may pass
	socket string
	arena  string
	lustre string // "" for none
	shm    string // --shm-bytes
}

func newPlace(t *testing.T, shm string) place {
	t.Helper()
	dir, err := os.MkdirTemp("", "cascade-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := place{dir: dir, socket: filepath.Join(dir, "rank.sock"), arena: "/dev/shm/" + filepath.Base(dir) + ".arena", shm: shm}
	t.Cleanup(func() {
		os.Remove(p.arena)
		os.RemoveAll(dir)
	})
	return p
}

// withLustre returns the place with a directory for the cold tier.
func (p place) withLustre() place {
	p.lustre = filepath.Join(p.dir, "lustre")
	return p
}

func (p place) args(more ...string) []string {
	return append([]string{"--socket", p.socket, "--shm-path", p.arena, "--shm-bytes", p.shm, "--lustre-dir", p.lustre, "--lustre-index", filepath.Join(p.dir, "index")}, more...)
}

// rank is one cascaded. It belongs to its test's goroutine; only signals may
// come from others.
type rank struct {
	place
	cmd    *exec.Cmd
	stderr *testlog.Log
	ended  chan struct{}
}

// cleanEnv is the environment without variables that would configure a rank.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CASCADE_") {
			env = append(env, v)
		}
	}
	return env
}

// launch starts a rank and does not wait for it.
func launch(t *testing.T, p place, more ...string) *rank {
	t.Helper()
	return launchWithin(t, nil, p, more...)
}

// launchWithin is launch by way of another command, which becomes the rank.
func launchWithin(t *testing.T, within []string, p place, more ...string) *rank {
	t.Helper()
	line := append(append(slices.Clone(within), program("cascaded")), p.args(more...)...)
	r := &rank{place: p, cmd: exec.Command(line[0], line[1:]...), stderr: &testlog.Log{}, ended: make(chan struct{})}
	r.cmd.Env = cleanEnv()
	r.cmd.Stderr = r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // the status is in ProcessState
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("cascaded said:\n%s", tailOf(r.stderr.String()))
		}
	})
	return r
}

func tailOf(s string) string {
	const most = 4000
	if len(s) > most {
		return "… " + s[len(s)-most:]
	}
	return s
}

// patience bounds every wait of these tests; nothing takes nearly as long.
const patience = 60 * time.Second

// start launches a rank and waits for its PONG.
func start(t *testing.T, p place, more ...string) *rank {
	t.Helper()
	return startWithin(t, nil, p, more...)
}

// startWithin is start by way of another command, which becomes the rank.
func startWithin(t *testing.T, within []string, p place, more ...string) *rank {
	t.Helper()
	r := launchWithin(t, within, p, more...)
	until(t, "PONG", func() bool {
		select {
		case <-r.ended:
			t.Fatalf("cascaded ended with %v: %s", r.cmd.ProcessState, r.stderr)
		default:
		}
		c, err := resp.Dial("unix", p.socket, patience)
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = c.Do("PING")
		return err == nil
	})
	return r
}

// until polls for something that comes soon.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// untilSays returns when the rank has said each of these. What it says comes by
// a pipe, later maybe than its answer to a client.
func (r *rank) untilSays(t *testing.T, words ...string) {
	t.Helper()
	for _, w := range words {
		until(t, w, func() bool { return r.stderr.Has(w) })
	}
}

// kill ends the rank as kill -9 does; once it has ended it does nothing.
func (r *rank) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// signal sends one to a rank that runs.
func (r *rank) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// status waits for the end and returns the exit status.
func (r *rank) status(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Fatalf("cascaded does not end; it said: %s", tailOf(r.stderr.String()))
	}
	return r.cmd.ProcessState.ExitCode()
}

// dial connects to the unix socket; the test's end closes the client.
func (r *rank) dial(t *testing.T) *resp.Client {
	t.Helper()
	c, err := resp.Dial("unix", r.socket, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// stats asks for the store's statistics.
func (r *rank) stats(t *testing.T) cascade.Stats {
	t.Helper()
	c := r.dial(t)
	defer c.Close()
	reply, err := c.Do("CASCADE.STATS")
	if err != nil {
		t.Fatal(err)
	}
	var s cascade.Stats
	if err := json.Unmarshal(reply.Str, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// finish runs a program to its end and returns its exit status and output.
func finish(t *testing.T, path string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &err, cleanEnv()
	var exit *exec.ExitError
	if e := cmd.Run(); e != nil && !errors.As(e, &exit) {
		t.Fatal(e)
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// watch starts the tool; its output grows while it runs. The test's end kills it.
func watch(t *testing.T, args ...string) (*exec.Cmd, *testlog.Log) {
	t.Helper()
	out := &testlog.Log{}
	cmd := exec.Command(program("cascade"), args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, cleanEnv()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended if all went well
	return cmd, out
}

// freePort is a loopback address that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := nodeaddr.FreePort(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// wantWords checks that an error tells what a person needs to know.
func wantWords(t *testing.T, said string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%q is not in:\n%s", w, tailOf(said))
		}
	}
}

// wantStatus checks an exit status.
func wantStatus(t *testing.T, got, want int, said fmt.Stringer) {
	t.Helper()
	if got != want {
		t.Errorf("exit status %d, want %d; it said:\n%s", got, want, tailOf(said.String()))
	}
}
