package kit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Process is a program that was started for a measurement. One goroutine uses
// it.
type Process struct {
	Name   string
	cmd    *exec.Cmd
	output Tail
	ended  chan struct{} // closed when it has ended
	err    error         // how it ended; valid after ended
}

// Tail is a writer that keeps the last 4 KiB. It is safe for concurrent use.
type Tail struct {
	mu struct {
		sync.Mutex
		text []byte
	}
}

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.text = append(t.mu.text, p...)
	t.mu.text = t.mu.text[max(0, len(t.mu.text)-most):]
	return len(p), nil
}

// String is what was kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.mu.text))
}

// Start runs cmd until Stop; it is terminated with this program, unless
// cmd.SysProcAttr has another signal for that. cmd.Env is added
// to the environment, without the variables of a rank's configuration: a
// measurement has its own. Standard error, and standard output unless cmd has
// one, go to log and into error messages. Error: ErrStart.
func Start(name string, log io.Writer, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, ended: make(chan struct{})}
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CASCADE_") })
	cmd.Env = append(environment, cmd.Env...)
	cmd.Stderr = io.MultiWriter(log, &p.output)
	if cmd.Stdout == nil {
		cmd.Stdout = cmd.Stderr
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrStart, name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// patience is how long a program may take to end before it is killed.
const patience = 20 * time.Second

// Stop ends the process and waits for it.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	return p.Wait()
}

// Wait waits until the process has ended, and kills it when that takes long.
func (p *Process) Wait() error {
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	if p.err != nil {
		return fmt.Errorf("bench: %s ended with %w: %s", p.Name, p.err, &p.output)
	}
	return nil
}

// Alive returns an error once the process has ended. Error: ErrStart.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%w: %s ended by itself (%v): %s", ErrStart, p.Name, p.err, &p.output)
	default:
		return nil
	}
}

// Output is the end of what the process has written.
func (p *Process) Output() string { return p.output.String() }

// Tick is the unit of times in /proc: USER_HZ, 100 on every architecture.
const Tick = 10 * time.Millisecond

// CPU is the time that all threads of the process have used, in whole ticks.
func (p *Process) CPU() (time.Duration, error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("bench: CPU time of %s: %w", p.Name, err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return 0, fmt.Errorf("bench: CPU time of %s: %w", p.Name, err)
	}
	return time.Duration(stat.UTime+stat.STime) * Tick, nil
}

// Written is how many bytes the process has written that go to disks, as the kernel
// counts them: whole pages, none of file systems in memory.
func (p *Process) Written() (uint64, error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("bench: I/O of %s: %w", p.Name, err)
	}
	io, err := proc.IO()
	if err != nil {
		return 0, fmt.Errorf("bench: I/O of %s: %w", p.Name, err)
	}
	return io.WriteBytes, nil
}
