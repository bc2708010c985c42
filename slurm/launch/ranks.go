package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ErrDrain means that ranks had to be killed, or ended with another status than 0.
var ErrDrain = errors.New("launch: not all ranks ended in good order")

const (
	// controlTimeout is how long squeue or scancel may take.
	controlTimeout = 20 * time.Second
	// endMargin is what a rank takes at its end besides its drain, and Slurm to see
	// that.
	endMargin = 20 * time.Second
	// promptly is how long ranks may take to end until others look after them.
	promptly = 5 * time.Second
	// killedMargin is how long ranks that were killed may take to be gone.
	killedMargin = 30 * time.Second
)

// ranks are those that were started, by srun or as a child.
type ranks struct {
	plan  *Plan
	cmd   *exec.Cmd
	log   *os.File
	from  int64         // where their words begin in it
	steps []string      // that Slurm has of them; nil: not asked yet, or outside Slurm
	ended chan struct{} // closed when all have ended
}

// start starts the ranks. Whoever calls it calls stop.
func (p *Plan) start() (*ranks, error) {
	log, err := os.OpenFile(p.Log, os.O_RDWR|os.O_CREATE, 0o600)
	from := int64(0)
	if err == nil { // a batch script may launch more than once
		from, err = log.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, fmt.Errorf("launch: the ranks' log: %w; name another with --log", err)
	}
	r := &ranks{plan: p, cmd: exec.Command(p.Command[0], p.Command[1:]...), log: log, from: from, ended: make(chan struct{})}
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = p.Env, log, log
	// Ctrl-C at a terminal is for the engine; srun would kill ranks undrained.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.Place.Job == nil {
		r.cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("launch: %w", err), log.Close())
	}
	go func() {
		_ = r.cmd.Wait() // the status is in ProcessState
		close(r.ended)
	}()
	return r, nil
}

// find has Slurm name the step of the ranks. Within a job its name is its own.
func (r *ranks) find(ctx context.Context) error {
	if r.plan.Place.Job == nil || r.steps != nil {
		return nil
	}
	out, err := r.control(ctx, "squeue", "--noheader", "--steps", "--jobs="+strings.Join(r.plan.Place.jobIDs(), ","), "--format=%i|%j")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if id, name, _ := strings.Cut(strings.TrimSpace(line), "|"); name == r.plan.Name {
			r.steps = append(r.steps, id)
		}
	}
	if r.steps == nil {
		return fmt.Errorf("launch: squeue names no step %s", r.plan.Name)
	}
	return nil
}

// control runs a command of Slurm and returns its standard output.
func (r *ranks) control(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.WaitDelay = r.plan.Env, time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("launch: %s: %w: %s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// signal sends a signal to all ranks. One of them that has just ended is an error of
// scancel.
func (r *ranks) signal(ctx context.Context, sig syscall.Signal, name string) error {
	if r.plan.Place.Job == nil {
		return r.cmd.Process.Signal(sig)
	}
	if err := r.find(ctx); err != nil {
		return err
	}
	_, err := r.control(ctx, "scancel", append([]string{"--signal=" + name}, r.steps...)...)
	return err
}

// stop has the ranks drain and end, kills those that do not in time, and rescues what was
// killed.
func (r *ranks) stop(ctx context.Context, progress func(format string, args ...any)) error {
	defer r.log.Close()
	limit := endMargin
	if r.plan.Config.Lustre.Dir != "" {
		limit += r.plan.Config.Deadline.Drain.Std()
	}
	r.ask(ctx, limit, progress)
	if !r.within(promptly) {
		return r.follow(ctx, limit, progress)
	}
	err := r.verdict()
	if err != nil {
		err = errors.Join(err, r.rescue(ctx, progress))
	}
	return err
}

// ask asks the ranks to drain and end.
func (r *ranks) ask(ctx context.Context, limit time.Duration, progress func(format string, args ...any)) {
	if r.within(0) {
		return
	}
	// SIGTERM is sent once: a rank takes a second one, when it comes late, for an order
	// to end undrained.
	for asked := time.Now(); r.find(ctx) != nil && time.Since(asked) < controlTimeout; {
		if r.within(time.Second) { // srun may not have made the step yet
			return
		}
	}
	if err := r.signal(ctx, syscall.SIGTERM, "TERM"); err != nil && !r.within(time.Second) {
		progress("%v", err)
	}
	progress("the ranks drain, for %v at most", limit)
}

// follow waits for ranks that do not end promptly, and kills those that do not in time. srun waits without end for one
// whose part of the step Slurm has lost, so the rescue, which waits for the rank of each node, has the last word.
func (r *ranks) follow(ctx context.Context, limit time.Duration, progress func(format string, args ...any)) error {
	rescued := make(chan error, 1)
	under := r.plan.canRescue()
	if under {
		go func() { rescued <- r.rescue(ctx, nil) }()
	}
	late := time.NewTimer(limit - promptly)
	defer late.Stop()
	for {
		select {
		case <-r.ended:
			err := r.verdict()
			if under && err != nil {
				err = errors.Join(err, <-rescued)
			} else if under {
				<-rescued // it has found nothing, whatever it says
			}
			return err
		case failed := <-rescued:
			under = false
			if failed == nil && !r.within(promptly) {
				return r.abandon(ctx)
			}
		case <-late.C:
			err := fmt.Errorf("%w: they did not end within %v, and are killed", ErrDrain, limit)
			err = errors.Join(err, r.signal(ctx, syscall.SIGKILL, "KILL"))
			if !r.within(killedMargin) {
				err = errors.Join(err, fmt.Errorf("%w: killed ranks are still there after %v; the end of the job ends them", ErrDrain, killedMargin))
			}
			if under { // it has the arenas that they leave
				return errors.Join(err, <-rescued)
			}
			return errors.Join(err, r.rescue(ctx, progress))
		}
	}
}

// abandon gives up the step of ranks that have all ended, of which Slurm has lost a part.
func (r *ranks) abandon(ctx context.Context) error {
	err := fmt.Errorf("%w: they have all ended, but Slurm has lost a part of their step, which srun waits for: it is given up; %s has their words", ErrDrain, r.plan.Log)
	if failed := r.signal(ctx, syscall.SIGKILL, "KILL"); failed != nil {
		err = errors.Join(err, failed)
	}
	_ = r.cmd.Process.Kill() // it may have ended
	if !r.within(killedMargin) {
		err = errors.Join(err, fmt.Errorf("%w: srun is still there after %v", ErrDrain, killedMargin))
	}
	return err
}

// within waits for the end of all ranks.
func (r *ranks) within(limit time.Duration) bool {
	select {
	case <-r.ended:
		return true
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.ended:
		return true
	case <-timer.C:
		return false
	}
}

// verdict judges the end of the ranks, which are gone.
func (r *ranks) verdict() error {
	if r.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%w: %s ended with %v; %s has their words", ErrDrain, r.cmd.Args[0], r.cmd.ProcessState, r.plan.Log)
}

// tail is the end of the log, for an error.
func (r *ranks) tail() string {
	const most = 4 << 10
	info, err := r.log.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, most)
	n, err := r.log.ReadAt(text, max(r.from, info.Size()-most))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return strings.TrimSpace(string(text[:n]))
}
