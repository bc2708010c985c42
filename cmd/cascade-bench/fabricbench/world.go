package fabricbench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// RankVerb is the hidden verb of cascade-bench that runs one rank.
const RankVerb = "fabric-rank"

// pair is the programs of both worlds and how they are started.
type pair struct {
	ours, theirs []string // command lines
	mode         string
	rget         bool // theirs can do one-sided transfers too
	log          io.Writer
	memory       string // folder of the ranks' memory, for the caller to remove
}

// buildPair builds both programs into the user's cache folder.
func buildPair(ctx context.Context, o Options) (*pair, error) {
	src, out, err := folders(o.MPI)
	if err != nil {
		return nil, err
	}
	k := &pair{mode: "two-sided", rget: true, log: o.Log}
	rank, c := filepath.Join(out, "cascade-bench"), filepath.Join(out, "fabric")
	builds := [][]string{
		{filepath.Join(src, "scripts/mpi-build.sh"), o.MPI, rank, "./cmd/cascade-bench"},
		{"mpicc." + o.MPI, "-O2", "-o", c, "bench/c/fabric.c"},
	}
	var launcher, role []string
	switch o.MPI {
	case "openmpi":
		launcher = []string{"mpirun.openmpi", "--bind-to", "none", "-n", "2", "--allow-run-as-root", "--oversubscribe"}
	case "mpich":
		launcher = []string{"mpiexec.mpich", "-n", "2"}
	case "none":
		if rank, err = os.Executable(); err != nil {
			return nil, err
		}
		k.mode, k.rget, role = "stream", false, []string{TCP}
		builds = [][]string{{"cc", "-O2", "-o", c, "bench/c/loop.c"}}
	}
	for _, line := range builds {
		if err := build(ctx, src, o.Log, line); err != nil {
			return nil, err
		}
	}
	if k.memory, err = os.MkdirTemp("/dev/shm", "cascade-bench-"); err != nil {
		return nil, err
	}
	memory := []string{k.memory, strconv.Itoa(memoryBytes)}
	k.ours = slices.Concat(launcher, []string{rank, RankVerb}, memory, role)
	k.theirs = slices.Concat(launcher, []string{c}, memory)
	return k, nil
}

// folders finds the source tree, above the working directory or this program,
// and makes the folder for programs.
func folders(kind string) (src, out string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	out = filepath.Join(cache, "cascade", "bench", kind)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", "", err
	}
	here, _ := os.Getwd()
	own, _ := os.Executable()
	for _, dir := range []string{here, filepath.Dir(own)} {
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(mod, []byte("module cascadekv\n")) {
				return dir, out, nil
			}
		}
	}
	return "", "", ErrNoSource
}

// build runs a command line in dir.
func build(ctx context.Context, dir string, log io.Writer, line []string) error {
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	var output kit.Tail
	c.Dir, c.Stdout = dir, io.MultiWriter(log, &output)
	c.Stderr = c.Stdout
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s: %w: %s", ErrBuild, strings.Join(line, " "), err, &output)
	}
	return nil
}

// world is two ranks that carry out lines of text. One goroutine uses it.
type world struct {
	*kit.Process
	in    io.WriteCloser
	out   *os.File // what lines reads, for its deadlines
	lines *bufio.Reader
}

// answerTime is the longest wait for one answer of a world.
const answerTime = time.Minute

// start starts a world and waits until both ranks are there.
func (k *pair) start(ctx context.Context, line []string) (*world, error) {
	c := exec.Command(line[0], line[1:]...)
	c.Env = []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.Stdout = write
	w := &world{in: in, out: out, lines: bufio.NewReader(out)}
	w.Process, err = kit.Start(filepath.Base(line[0]), k.log, c)
	write.Close() // the world has its own
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("%w: %w: install openmpi-bin or mpich", ErrWorld, err)
	}
	if got, err := w.line(ctx); err != nil || got != "ready" {
		_ = w.Stop() // what matters is why it is not ready
		out.Close()
		return nil, fmt.Errorf("%w: %s wrote %q, not that it is ready: %w", ErrWorld, strings.Join(line, " "), got, err)
	}
	return w, nil
}

// line waits for a line of output that is not empty.
func (w *world) line(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = w.out.SetReadDeadline(time.Now()) })()
	for {
		text, err := w.lines.ReadString('\n')
		if ctx.Err() != nil {
			return "", fmt.Errorf("%w: no answer of %s: %w", ErrWorld, w.Name, ctx.Err())
		}
		if err != nil {
			return "", fmt.Errorf("%w: %s ended: %w: %s", ErrWorld, w.Name, err, w.Output())
		}
		if text = strings.TrimSpace(text); text != "" {
			return text, nil
		}
	}
}

// ask sends a line and returns the n numbers of the answer; nil when the world
// can not do what was asked.
func (w *world) ask(ctx context.Context, line string, n int) ([]float64, error) {
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		return nil, fmt.Errorf("%w: %s: %w: %s", ErrWorld, w.Name, err, w.Output())
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
		return nil, fmt.Errorf("%w: %s answered %q to %q", ErrWorld, w.Name, answer, line)
	}
	return numbers, nil
}

// quit ends a world.
func (w *world) quit() error {
	_, _ = fmt.Fprintln(w.in, "quit") // Wait reports one that has ended already
	_ = w.in.Close()
	defer w.out.Close()
	go func() { _, _ = io.Copy(io.Discard, w.out) }() // so that it can end
	if err := w.Wait(); err != nil {
		return fmt.Errorf("%w: %w", ErrWorld, err)
	}
	return nil
}
