package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// FabricRankVerb is the hidden verb of cascade bench that runs one rank.
const FabricRankVerb = "fabric-rank"

// fabricKit is the two programs of a fabric benchmark and how they are started.
type fabricKit struct {
	ours, theirs []string // command lines
	mode         string
	rget         bool // theirs can do one-sided transfers too
	log          io.Writer
	memory       string // folder of the ranks' memory, for the caller to remove
}

// buildFabricKit builds both programs into the user's cache folder.
func buildFabricKit(ctx context.Context, o FabricOptions) (*fabricKit, error) {
	var launcher []string
	switch o.MPI {
	case "openmpi":
		launcher = []string{"mpirun.openmpi", "--bind-to", "none", "-n", "2", "--allow-run-as-root", "--oversubscribe"}
	case "mpich":
		launcher = []string{"mpiexec.mpich", "-n", "2"}
	case "none":
		return buildLoopKit(ctx, o)
	default:
		return nil, fmt.Errorf("%w: mpi %q is none of openmpi, mpich, none", ErrBadOption, o.MPI)
	}
	src, out, err := fabricFolders(o.MPI)
	if err != nil {
		return nil, err
	}
	rank, c := filepath.Join(out, "cascade"), filepath.Join(out, "fabric")
	for _, build := range [][]string{
		{"scripts/mpi-build.sh", o.MPI, rank, "./cmd/cascade"},
		{"mpicc." + o.MPI, "-O2", "-o", c, "bench/c/fabric.c"},
	} {
		if err := runBuild(ctx, src, o.Log, build); err != nil {
			return nil, err
		}
	}
	memory, err := os.MkdirTemp("/dev/shm", "cascade-bench-")
	if err != nil {
		return nil, err
	}
	n, bytes := len(launcher), strconv.Itoa(fabricMemory) // both command lines are copies of the launcher
	return &fabricKit{
		ours:   append(launcher[:n:n], rank, "bench", FabricRankVerb, memory, bytes),
		theirs: append(launcher[:n:n], c, memory, bytes),
		mode:   "two-sided", rget: true, log: o.Log, memory: memory,
	}, nil
}

// fabricFolders finds the source tree and makes the folder for programs.
func fabricFolders(kind string) (src, out string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	out = filepath.Join(cache, "cascade", "bench", kind)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", "", err
	}
	starts := []string{"."}
	if own, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(own))
	}
	for _, dir := range starts {
		if dir, err = filepath.Abs(dir); err != nil {
			return "", "", err
		}
		for ; ; dir = filepath.Dir(dir) {
			if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(mod, []byte("module cascadekv\n")) {
				return dir, out, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", "", ErrNoSource
}

func runBuild(ctx context.Context, dir string, log io.Writer, line []string) error {
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	if strings.Contains(line[0], "/") {
		c.Path = filepath.Join(dir, line[0])
		c.Err = nil
	}
	var said tail
	c.Dir, c.Stdout, c.Stderr = dir, io.MultiWriter(log, &said), io.MultiWriter(log, &said)
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s: %w: %s", ErrBuild, strings.Join(line, " "), err, said.String())
	}
	return nil
}

// fabricWorld is a pair of ranks that does what it is told.
type fabricWorld struct {
	name   string
	c      *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	said   *tail
	exited chan error
}

// fabricAnswer is the longest wait for one answer of a world.
const fabricAnswer = time.Minute

// start starts a world and waits until both ranks are there.
func (k *fabricKit) start(ctx context.Context, line []string) (*fabricWorld, error) {
	w := &fabricWorld{name: filepath.Base(line[0]), c: exec.Command(line[0], line[1:]...), lines: make(chan string, 1),
		said: &tail{}, exited: make(chan error, 1)}
	w.c.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	w.c.Stderr = io.MultiWriter(k.log, w.said)
	var err error
	if w.in, err = w.c.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.c.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w: install openmpi-bin or mpich", ErrWorld, err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			if line := strings.TrimSpace(s.Text()); line != "" {
				w.lines <- line
			}
		}
		close(w.lines)
		w.exited <- w.c.Wait()
	}()
	if got, err := w.line(ctx); err != nil || got != "ready" {
		_ = w.c.Process.Kill() // what matters is why it is not ready
		return nil, fmt.Errorf("%w: %s said %q, not that it is ready: %w", ErrWorld, strings.Join(line, " "), got, err)
	}
	return w, nil
}

// line waits for a line of output.
func (w *fabricWorld) line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-w.lines:
		if !ok {
			return "", fmt.Errorf("%w: %s ended: %s", ErrWorld, w.name, w.said.String())
		}
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(fabricAnswer):
		return "", fmt.Errorf("%w: %s says nothing for %v", ErrWorld, w.name, fabricAnswer)
	}
}

// ask sends a line and returns the n numbers of the answer; nil when the world
// can not do what was asked.
func (w *fabricWorld) ask(ctx context.Context, line string, n int) ([]float64, error) {
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		return nil, fmt.Errorf("%w: %s: %w: %s", ErrWorld, w.name, err, w.said.String())
	}
	answer, err := w.line(ctx)
	if err != nil || answer == "none" {
		return nil, err
	}
	var numbers []float64
	for _, word := range strings.Fields(answer) {
		x, err := strconv.ParseFloat(word, 64)
		if err != nil {
			break
		}
		numbers = append(numbers, x)
	}
	if len(numbers) != n {
		return nil, fmt.Errorf("%w: %s answered %q to %q", ErrWorld, w.name, answer, line)
	}
	return numbers, nil
}

// stop ends a world.
func (w *fabricWorld) stop() error {
	_, _ = fmt.Fprintln(w.in, "quit") // one that has ended already says so below
	_ = w.in.Close()
	go func() {
		for range w.lines { // so that it can end
		}
	}()
	select {
	case err := <-w.exited:
		if err != nil {
			return fmt.Errorf("%w: %s: %w: %s", ErrWorld, w.name, err, w.said.String())
		}
		return nil
	case <-time.After(20 * time.Second):
		_ = w.c.Process.Kill()
		return fmt.Errorf("%w: %s does not end", ErrWorld, w.name)
	}
}
