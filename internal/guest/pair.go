package guest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

//go:embed pair.py
var pairDriver string

// Role is one machine of a pair.
type Role string

// The machines of a pair.
const (
	Server Role = "server"
	Client Role = "client"
)

// Pair is two guests: the servers and the client of one file system. Its
// methods are safe for concurrent use, but for End, which is the last.
type Pair struct {
	dir    string
	cmd    *exec.Cmd
	in     io.WriteCloser
	output bounded
	gone   chan struct{} // the driver has ended

	mu      sync.Mutex
	next    int
	waiting map[int]chan answer
}

type request struct {
	ID      int     `json:"id"`
	Verb    string  `json:"verb"`
	Role    Role    `json:"role"`
	Command string  `json:"command"`
	Limit   float64 `json:"limit"` // seconds
}

type answer struct {
	ID     int    `json:"id"`
	Status int    `json:"status"`
	Output string `json:"output"`
	Error  string `json:"error"`
}

// NewPair makes two machines with new disks and starts them. The caller must
// End them.
func (e *Equipment) NewPair(ctx context.Context) (*Pair, error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return nil, err
	}
	p := &Pair{dir: dir, gone: make(chan struct{}), waiting: map[int]chan answer{}}
	if err := p.drive(filepath.Join(e.dir, "lustre-pair.py"), filepath.Join(e.images, "um")); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("guest: start lustre-pair.py: %w", err)
	}
	for _, r := range []Role{Server, Client} {
		if err := p.Start(ctx, r); err != nil {
			p.End()
			return nil, err
		}
	}
	return p, nil
}

// drive starts the driver, which is the pair's keeper too.
func (p *Pair) drive(script, images string) error {
	p.cmd = exec.Command("python3", "-c", pairDriver, script, p.dir, images)
	p.cmd.Stderr = &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt of the terminal is not for it
	p.cmd.WaitDelay = time.Second
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go p.listen(out)
	return nil
}

// listen hands answers to those who wait for them, until the driver ends.
func (p *Pair) listen(out io.Reader) {
	defer close(p.gone)
	lines := json.NewDecoder(bufio.NewReader(out))
	for {
		var a answer
		if lines.Decode(&a) != nil {
			return
		}
		p.mu.Lock()
		if to := p.waiting[a.ID]; to != nil {
			to <- a // of capacity 1
			delete(p.waiting, a.ID)
		}
		p.mu.Unlock()
	}
}

func (p *Pair) send(r request) (int, chan answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	r.ID = p.next
	to := make(chan answer, 1)
	p.waiting[r.ID] = to
	err := json.NewEncoder(p.in).Encode(r)
	return r.ID, to, err
}

func (p *Pair) ask(ctx context.Context, limit time.Duration, r request) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.Limit = limit.Seconds()
	what := fmt.Sprintf("guest: %s %s %s", r.Verb, r.Role, r.Command)
	id, to, err := p.send(r)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w: %s", what, err, &p.output)
	}
	select {
	case a := <-to:
		if a.Error != "" {
			return Result{}, fmt.Errorf("%s: %s", what, a.Error)
		}
		return Result{Status: a.Status, Output: a.Output}, nil
	case <-p.gone:
		return Result{}, fmt.Errorf("%s: the driver has ended: %s", what, &p.output)
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
		return Result{}, fmt.Errorf("%s did not end in time: %w", what, ctx.Err())
	}
}

// Run runs a shell command on one machine and waits for its end.
func (p *Pair) Run(ctx context.Context, on Role, command string) (Result, error) {
	return p.ask(ctx, runLimit, request{Verb: "run", Role: on, Command: command})
}

// Start starts a machine after Kill, on the disks as they are. It returns when
// the servers serve, or the client has mounted.
func (p *Pair) Start(ctx context.Context, which Role) error {
	_, err := p.ask(ctx, upLimit, request{Verb: "start", Role: which})
	return err
}

// Kill takes one machine's power. What ran in it is not answered.
func (p *Pair) Kill(ctx context.Context, which Role) error {
	_, err := p.ask(ctx, killLimit, request{Verb: "kill", Role: which})
	return err
}

// End kills both machines and removes all they left.
func (p *Pair) End() error {
	p.in.Close() // a pipe: the driver may have gone, which Wait returns
	late := time.AfterFunc(killLimit, func() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	<-p.gone
	err := p.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("guest: end the pair: %w: %s", err, &p.output)
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// bounded keeps the end of what is written to it.
type bounded struct {
	mu sync.Mutex
	p  []byte
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.p = append(b.p, p...)
	b.p = b.p[max(0, len(b.p)-lastWords):]
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.p)
}
