package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestRepeatedTermDrains ends a rank as timeout(1) and wrappers do, with several
// signals within milliseconds, and looks for everything that was acknowledged.
func TestRepeatedTermDrains(t *testing.T) {
	const blocks, size = 200, 200_000
	p := newPlace(t, "128MiB").withLustre()
	r := start(t, p)
	c := r.dial(t)
	for i := range blocks {
		if err := c.Set(fmt.Sprint(i), bytesOf(fmt.Sprint(i), size)); err != nil {
			t.Fatal(err)
		}
	}
	r.signal(t, syscall.SIGTERM)
	for _, again := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM} {
		time.Sleep(10 * time.Millisecond)
		if err := r.cmd.Process.Signal(again); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	wantStatus(t, r.status(t), 0, r.stderr)
	if err := os.Remove(p.arena); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	c, value := start(t, p).dial(t), make([]byte, size)
	for i := range blocks {
		if n, err := c.Get(fmt.Sprint(i), value); err != nil || string(value[:n]) != string(bytesOf(fmt.Sprint(i), size)) {
			t.Fatalf("%d: %d bytes, %v", i, n, err)
		}
	}
}

// TestTermAfterLogReader: the program that reads the rank's log ends first, as
// tee does at Ctrl-C. The rank drains all the same.
func TestTermAfterLogReader(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := startWithin(t, []string{"sh", "-c", fmt.Sprintf(`exec "$@" 2>/proc/%d/fd/%d`, os.Getpid(), write.Fd()), "sh"}, p)
	if err := errors.Join(r.dial(t).Set("k", []byte("v")), read.Close(), write.Close()); err != nil {
		t.Fatal(err)
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	if err := os.Remove(p.arena); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	wantValue(t, start(t, p).dial(t), "k", "v")
}

// TestInterruptedVerb: a verb that waits for its input ends at the first signal.
func TestInterruptedVerb(t *testing.T) {
	p := newPlace(t, "64MiB")
	start(t, p)
	input, _, err := os.Pipe() // nothing comes, and no end either
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	verb := exec.Command(program("cascade"), "put", "--socket", p.socket, "--key", "k", "-")
	verb.Stdin, verb.Env = input, cleanEnv()
	if err := verb.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- verb.Wait() }()
	time.Sleep(300 * time.Millisecond) // it reads by then, or ends as it starts
	if err := verb.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = verb.Process.Kill()
		<-ended
		t.Error("put goes on after SIGINT")
	}
	if status, ok := verb.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want that of SIGINT", verb.ProcessState)
	}
}
