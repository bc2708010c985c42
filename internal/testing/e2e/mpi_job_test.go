package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
	"cascadekv/internal/testing/testneed"
)

// launcher starts the ranks of an MPI world.
type launcher struct {
	mpi     string   // openmpi or mpich, as scripts/mpi-build.sh calls them
	command []string // in front of cascaded
	env     []string
}

// overTCP has ranks talk over TCP, as ranks on several nodes do over their network.
// In memory that ranks of one host share, a rank that is killed in the middle of a
// message cuts its receiver off (docs/mpi.md, Ranks that share a host).
func (l launcher) overTCP() launcher {
	l.env = append(slices.Clone(l.env), "UCX_TLS=tcp,self", "OMPI_MCA_btl=tcp,self")
	return l
}

const mpiRanks = 4

// mpirun is Open MPI's own launcher. Ranks bound to one core each, its default,
// would have one for all they do; and root is refused without the variables.
func mpirun(t *testing.T, more ...string) launcher {
	t.Helper()
	path := testneed.Program(t, "mpirun.openmpi", "make tools")
	return launcher{
		mpi:     "openmpi",
		command: append([]string{path, "--bind-to", "none", "--oversubscribe", "-n", strconv.Itoa(mpiRanks)}, more...),
		env:     []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"},
	}
}

// mpiexec is MPICH's own launcher.
func mpiexec(t *testing.T) launcher {
	t.Helper()
	return launcher{mpi: "mpich", command: []string{testneed.Program(t, "mpiexec.mpich", "make tools"), "-n", strconv.Itoa(mpiRanks)}}
}

// mpiBuilt are the programs built for each MPI.
var mpiBuilt sync.Map

// mpiProgram is a cascaded that is built with an MPI, built once for all tests.
func mpiProgram(t *testing.T, mpi string) string {
	t.Helper()
	path := program(filepath.Join(mpi, "cascaded"))
	if os.Getenv(binVariable) != "" {
		_, err := os.Stat(path)
		testneed.That(t, err == nil, path, "scripts/mpi-build.sh "+mpi)
		return path
	}
	for _, name := range []string{"gcc", "pkg-config"} {
		testneed.Program(t, name, "make tools")
	}
	pkg := map[string]string{"openmpi": "ompi-c", "mpich": "mpich"}[mpi]
	testneed.That(t, exec.Command("pkg-config", "--exists", pkg).Run() == nil, "the headers of "+mpi, "make tools")
	build, _ := mpiBuilt.LoadOrStore(mpi, sync.OnceValue(func() error {
		cmd := exec.Command("scripts/mpi-build.sh", mpi, path, "./cmd/cascaded")
		cmd.Dir = filepath.Join("..", "..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}))
	if err := build.(func() error)(); err != nil {
		t.Fatalf("cascaded with %s: %v", mpi, err)
	}
	return path
}

// launcherEnv is the environment of a launcher, without what one around these
// tests may have said.
func launcherEnv(more []string) []string {
	var env []string
	for _, v := range cleanEnv() {
		foreign := false
		for _, prefix := range []string{"SLURM", "OMPI_", "PMI", "HYDRA_", "MPIR_"} {
			foreign = foreign || strings.HasPrefix(v, prefix)
		}
		if !foreign {
			env = append(env, v)
		}
	}
	return append(env, more...)
}

// mpiJob is a job whose ranks one launcher started together. All ranks' words
// are in one text, and it is the launcher that knows their exit statuses.
type mpiJob struct {
	*job
	cmd   *exec.Cmd
	said  *testlog.Log
	ended chan struct{} // with the launcher
	pids  []int
}

// launchMPI starts a launcher with a cascaded per rank and does not wait.
func launchMPI(t *testing.T, l launcher, shm string, lustre bool, more ...string) *mpiJob {
	t.Helper()
	m := prepareMPI(t, l, shm, lustre, more...)
	m.launch()
	return m
}

// prepareMPI finds a place for each rank of a job.
func prepareMPI(t *testing.T, l launcher, shm string, lustre bool, more ...string) *mpiJob {
	t.Helper()
	path := mpiProgram(t, l.mpi)
	m := &mpiJob{job: newJob(t, shm, lustre), said: &testlog.Log{}, ended: make(chan struct{})}
	p := newPlace(t, shm)
	// Ranks of several slurmd on one host share its name and its /dev/shm: their
	// numbers are what tells them apart.
	arenas := strings.TrimSuffix(p.arena, ".arena") + "-%s.arena"
	for i := range mpiRanks {
		one := place{dir: p.dir, socket: filepath.Join(p.dir, fmt.Sprintf("r%d.sock", i)), arena: fmt.Sprintf(arenas, strconv.Itoa(i))}
		m.ranks = append(m.ranks, &rank{place: one, stderr: m.said, ended: make(chan struct{})})
		t.Cleanup(func() { os.Remove(one.arena) })
	}
	args := append(l.command[1:len(l.command):len(l.command)], path, "--peers-fabric", "mpi", "--peers-gossip", "127.0.0.1:0",
		"--socket", filepath.Join(p.dir, "r{rank}.sock"), "--shm-path", fmt.Sprintf(arenas, "{rank}"), "--shm-bytes", shm, "--lustre-dir", m.lustre, "--lustre-index", filepath.Join(p.dir, "index"))
	m.cmd = exec.Command(l.command[0], append(args, more...)...)
	m.cmd.Env, m.cmd.Stdout, m.cmd.Stderr = launcherEnv(l.env), m.said, m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	m.cmd.WaitDelay = patience // a rank that is left would hold the pipe of its words open
	return m
}

// launch starts a job that is prepared.
func (m *mpiJob) launch() {
	m.t.Helper()
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		_ = m.cmd.Wait() // the status is in ProcessState
		close(m.ended)
	}()
	m.t.Cleanup(m.clean)
}

// clean ends what a failed test left, and logs all output and how the ranks that ran
// to the end saw each other.
func (m *mpiJob) clean() {
	failed := m.t.Failed()
	if failed {
		for i := range m.pids {
			if m.up(i) {
				m.t.Logf("rank %d:\n%s", i, m.ranks[i].view())
			}
		}
	}
	m.stop()
	if failed {
		m.t.Logf("%s said:\n%s", m.cmd.Args, m.said)
	}
}

// view is what cascade status says of a rank, which may not answer.
func (r *rank) view() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program("cascade"), "status", "--socket", r.socket)
	cmd.Env = cleanEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\ncascade status: %v", out, err)
	}
	return string(out)
}

// stop ends a job that did not end by itself.
func (m *mpiJob) stop() {
	for i, pid := range m.pids {
		if m.up(i) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-m.ended:
		default:
			_ = m.cmd.Process.Signal(s)
			select {
			case <-m.ended:
			case <-time.After(10 * time.Second):
			}
		}
	}
}

// startMPI launches a job and waits until each rank knows all.
func startMPI(t *testing.T, l launcher, shm string, lustre bool, more ...string) *mpiJob {
	t.Helper()
	mpiProgram(t, l.mpi) // building it is not the ranks' time
	began := time.Now()
	m := launchMPI(t, l, shm, lustre, more...)
	if !m.serves() {
		t.Logf("a rank crashed in MPI_Init; once more. It said:\n%s", tailOf(m.said.String()))
		m.stop()
		if m = launchMPI(t, l, shm, lustre, more...); !m.serves() {
			t.Fatal("again a rank crashed in MPI_Init")
		}
	}
	served := time.Since(began)
	m.agree(mpiRanks)
	t.Logf("%s: %d ranks serve after %v, know each other after %v", filepath.Base(l.command[0]), mpiRanks,
		served.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return m
}

// serves waits until all ranks answer. It is false when one crashed in MPI_Init,
// which Open MPI 4.1 does now and then under Slurm's pmix: docs/mpi.md, Under
// Slurm.
func (m *mpiJob) serves() bool {
	m.t.Helper()
	crashed := false
	for i, r := range m.ranks {
		until(m.t, fmt.Sprintf("rank %d", i), func() bool {
			said := m.said.String()
			crashed = strings.Contains(said, "SIGSEGV") && strings.Contains(said, "cascadekv/dht/mpi.Start")
			if crashed {
				return true
			}
			select {
			case <-m.ended:
				m.t.Fatalf("%s ended with %v", m.cmd.Path, m.cmd.ProcessState)
			default:
			}
			c, err := resp.Dial("unix", r.socket, patience)
			if err != nil {
				return false
			}
			defer c.Close()
			_, err = c.Do("PING")
			return err == nil
		})
		if crashed {
			return false
		}
		m.pids = append(m.pids, listener(m.t, r.socket))
	}
	return true
}

// listener is the process that listens on a unix socket.
func listener(t *testing.T, socket string) int {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return int(cred.Pid)
}

// up reports whether rank i runs. It is not this process's child; one that has
// ended and nobody has waited for does not run.
func (m *mpiJob) up(i int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.pids[i]))
	if err != nil {
		return false
	}
	name, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasSuffix(name, "(cascaded") && !strings.HasPrefix(rest, "Z")
}

// kill ends rank i as kill -9 does, and returns at once. It may be called once,
// from any goroutine.
func (m *mpiJob) kill(i int) {
	_ = syscall.Kill(m.pids[i], syscall.SIGKILL)
	close(m.ranks[i].ended)
}

// term ends the ranks that run as a user does, all at once, and waits for the
// launcher; it returns its exit status.
func (m *mpiJob) term() int {
	m.t.Helper()
	for i := range m.ranks {
		if m.up(i) {
			if err := syscall.Kill(m.pids[i], syscall.SIGTERM); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	return m.status()
}

// termSlowly is term with one rank that has more to do at its end than the
// others: their launcher must not take that for the end of the job.
func (m *mpiJob) termSlowly() int {
	m.t.Helper()
	const longer = 9 * time.Second // than ranks take and wait for each other under srun
	if err := syscall.Kill(m.pids[1], syscall.SIGSTOP); err != nil {
		m.t.Fatal(err)
	}
	time.AfterFunc(longer, func() { _ = syscall.Kill(m.pids[1], syscall.SIGCONT) })
	return m.term()
}

// status waits for the launcher's end.
func (m *mpiJob) status() int {
	m.t.Helper()
	select {
	case <-m.ended:
	case <-time.After(patience):
		m.t.Fatalf("%s does not end", m.cmd.Path)
	}
	return m.cmd.ProcessState.ExitCode()
}

// endings counts the ranks that said to have ended in good order.
func (m *mpiJob) endings() int { return strings.Count(m.said.String(), `msg="cascaded ends"`) }
