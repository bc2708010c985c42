package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that was started for a measurement.
type process struct {
	name   string
	cmd    *exec.Cmd
	stderr *tail
	ended  chan struct{} // closed when it has ended
	err    error         // how it ended; valid after ended
}

// tail keeps the last bytes that a process said. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = t.text[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// startProcess runs path until stop. It dies with this process. Variables of
// the rank's configuration are kept from it: a measurement has its own.
func startProcess(name, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), stderr: &tail{}, ended: make(chan struct{})}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CASCADE_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stderr, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrStart, name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stopPatience is how long a server may take to end before it is killed.
const stopPatience = 20 * time.Second

// stop ends the process and waits for it.
func (p *process) stop() error {
	// An error means that it has ended already, which is what is wanted.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopPatience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return fmt.Errorf("bench: %s ended with %w: %s", p.name, p.err, p.stderr)
	}
	return p.err
}

// alive returns an error once the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%w: %s ended by itself (%v): %s", ErrStart, p.name, p.err, p.stderr)
	default:
		return nil
	}
}

// tick is the unit of times in /proc: USER_HZ, 100 on every architecture.
const tick = 10 * time.Millisecond

// cpu is the time that all threads of the process have used, in whole ticks.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("bench: CPU time of %s: %w", p.name, err)
	}
	return parseStat(text)
}

// parseStat reads user and system time from the text of /proc/<pid>/stat. The
// program's name, in parentheses, may contain anything.
func parseStat(text []byte) (time.Duration, error) {
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("bench: /proc/<pid>/stat has %d fields after the name, want 13", len(fields))
	}
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("bench: /proc/<pid>/stat: %w", err)
	}
	return time.Duration(user+system) * tick, nil
}

// sleep waits, or returns why it could not.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
