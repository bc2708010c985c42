package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Result is how a command in a guest ended.
type Result struct {
	Status int    // exit status; 125 when the guest died under it
	Output string // standard output and error together
}

// Died is the status of a command whose guest ended first.
const Died = 125

// Limits of what has no deadline of its own. A guest is up after 4 s; one that
// formats its disks, on a machine with much else to do, may need a minute.
const (
	upLimit   = 2 * time.Minute
	runLimit  = 10 * time.Minute
	killLimit = 30 * time.Second
)

// lastWords is how much of a failed program's output an error carries, in bytes.
const lastWords = 4000

// run runs a program of this machine to its end, with the variables of env
// besides its own. An error says that it could not run or that ctx ended first,
// and then it is killed with all that it started in its process group.
func run(ctx context.Context, what string, env []string, program string, args ...string) (Result, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("guest: %s did not end in time: %w: %s", what, ctx.Err(), tail(out.String()))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, fmt.Errorf("guest: %s: %w: %s", what, err, tail(out.String()))
	}
	return Result{Status: cmd.ProcessState.ExitCode(), Output: out.String()}, nil
}

func tail(s string) string {
	if len(s) > lastWords {
		return "… " + s[len(s)-lastWords:]
	}
	return s
}

// keeper ends a guest when its input ends: because release was called, or
// because the process that holds the other end is gone.
type keeper struct {
	cmd *exec.Cmd
	in  interface{ Close() error }
	out bytes.Buffer
}

// keep starts a keeper, which runs the shell's commands in end.
func keep(env []string, end string) (*keeper, error) {
	k := &keeper{cmd: exec.Command("bash", "-c", `trap "" INT TERM HUP; cat >/dev/null; `+end)}
	k.cmd.Env = append(os.Environ(), env...)
	k.cmd.Stdout, k.cmd.Stderr = &k.out, &k.out
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt of the terminal is not for it
	k.cmd.WaitDelay = time.Second
	in, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	k.in = in
	return k, k.cmd.Start()
}

// release lets the keeper do its work and waits for it.
func (k *keeper) release() error {
	k.in.Close() // a pipe: the keeper may have gone, which Wait returns
	late := time.AfterFunc(killLimit, func() { syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("guest: end it: %w: %s", err, tail(k.out.String()))
	}
	return nil
}
