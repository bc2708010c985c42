package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/testneed"
)

// cluster is a Slurm of this test on this machine: one slurmd for each rank.
type cluster struct{ conf string }

// startCluster starts it, with more lines in its slurm.conf.
func startCluster(t *testing.T, conf ...string) cluster {
	t.Helper()
	return startClusterWith(t, nil, conf...)
}

// startClusterWith is startCluster with more files beside slurm.conf.
func startClusterWith(t *testing.T, files map[string]string, conf ...string) cluster {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to start tasks as their users", "run this test as root")
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin") // Debian's users have no daemons in theirs
	for _, name := range []string{"munged", "slurmctld", "slurmd", "srun", "scancel"} {
		testneed.Program(t, name, "make tools")
	}
	dir, err := os.MkdirTemp("", "cascade-slurm-")
	if err == nil {
		err = os.Chmod(dir, 0o711) // scripts of jobs of other users are in it
	}
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("../../../scripts/slurm-down.sh", dir).CombinedOutput(); err != nil {
			t.Errorf("slurm-down.sh: %v: %s; its files are in %s", err, out, dir)
			return
		}
		os.RemoveAll(dir)
	})
	began := time.Now()
	up := exec.Command("../../../scripts/slurm-up.sh", dir, strconv.Itoa(mpiRanks), strconv.Itoa(os.Getpid()))
	up.Env = launcherEnv([]string{"SLURM_UP_CONF=" + strings.Join(conf, "\n")})
	if out, err := up.CombinedOutput(); err != nil {
		t.Fatalf("slurm-up.sh: %v: %s", err, out)
	}
	t.Logf("a Slurm of %d nodes after %v", mpiRanks, time.Since(began).Round(time.Millisecond))
	return cluster{filepath.Join(dir, "slurm.conf")}
}

// srun starts a rank on each node. The two flags let a job live on without a
// node and without a rank.
func (c cluster) srun(mpi, plugin string) launcher {
	return launcher{
		mpi: mpi,
		command: []string{
			"srun", "--mpi=" + plugin, "-N", strconv.Itoa(mpiRanks), "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0",
		},
		env: []string{"SLURM_CONF=" + c.conf},
	}
}

// TestMPIUnderSlurm runs ranks over MPI as srun starts them.
func TestMPIUnderSlurm(t *testing.T) {
	long(t)
	c := startCluster(t)
	t.Run("openmpi", func(t *testing.T) { ranksOverMPI(t, c.srun("openmpi", "pmix"), (*mpiJob).term) })
	t.Run("mpich", func(t *testing.T) { ranksOverMPI(t, c.srun("mpich", "pmi2"), c.cancelled) })
	t.Run("a death with openmpi", func(t *testing.T) { deathOverMPI(t, c.srun("openmpi", "pmix")) })
	t.Run("a death with mpich", func(t *testing.T) { deathOverMPI(t, c.srun("mpich", "pmi2")) })
	t.Run("one leaves with openmpi", func(t *testing.T) { leaveOverMPI(t, c.srun("openmpi", "pmix")) })
	t.Run("one leaves with mpich", func(t *testing.T) { leaveOverMPI(t, c.srun("mpich", "pmi2").overTCP()) })
	t.Run("one does not start", func(t *testing.T) { oneDoesNotStart(t, c) })
	t.Run("the wrong plugin", func(t *testing.T) { wrongPlugin(t, c) })
}

// cancelled ends a job as Slurm ends jobs: SIGTERM first, and SIGKILL after the
// KillWait of slurm.conf. It returns srun's exit status.
func (c cluster) cancelled(m *mpiJob) int {
	m.t.Helper()
	cmd := exec.Command("scancel", "--user=root")
	cmd.Env = launcherEnv([]string{"SLURM_CONF=" + c.conf})
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return m.status()
}

// oneDoesNotStart has ranks wait in MPI for one that never comes: they must end
// when they are told to.
func oneDoesNotStart(t *testing.T, c cluster) {
	for _, l := range []launcher{c.srun("mpich", "pmi2"), c.srun("openmpi", "pmix")} {
		m := prepareMPI(t, l, "64MiB", false)
		for _, suffix := range []string{"", ".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9"} { // all names that an arena may get
			if err := os.Mkdir(m.ranks[victim].arena+suffix, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(m.ranks[victim].arena + suffix) })
		}
		m.launch()
		until(t, "the end of one, and the others", func() bool {
			said := m.said.String()
			return strings.Contains(said, "cannot start") && strings.Count(said, "cascaded starts") == mpiRanks
		})
		time.Sleep(time.Second) // from their first word to MPI
		status := c.cancelled(m)
		if n := strings.Count(m.said.String(), "stopping before start is complete"); n != mpiRanks-1 {
			t.Errorf("%d ranks heard that they are to end, want %d", n, mpiRanks-1)
		}
		if strings.Contains(m.said.String(), "Killed") {
			t.Error("the ranks had to be killed")
		}
		t.Logf("%s: srun ended with status %d", l.mpi, status)
	}
}

// wrongPlugin starts ranks of MPICH without its plugin. Each of them finds
// itself alone, and must not serve as if it were.
func wrongPlugin(t *testing.T, c cluster) {
	m := launchMPI(t, c.srun("mpich", "none"), "64MiB", false)
	if status := m.status(); status != 1 {
		t.Errorf("srun ended with status %d, want 1, that of the ranks", status)
	}
	wantWords(t, m.said.String(), "cannot start", "SLURM_STEP_NUM_TASKS=4", "MPICH sees 1", "--mpi=pmi2")
	// Open MPI ends such a start itself, in MPI_Init.
	m = launchMPI(t, c.srun("openmpi", "none"), "64MiB", false)
	if status := m.status(); status == 0 {
		t.Error("srun of Open MPI without its plugin ended with status 0")
	}
}

// leaveOverMPI ends one of four ranks with SIGTERM. The others go on, with what
// it had.
func leaveOverMPI(t *testing.T, l launcher) {
	m := startMPI(t, l, "64MiB", true)
	values := marks{"of-the-leaver", 20}
	values.put(t, m.ranks[victim].dial(t))
	began := time.Now()
	if err := syscall.Kill(m.pids[victim], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(t, "end of the rank", func() bool { return !m.up(victim) })
	close(m.ranks[victim].ended)
	ended := time.Since(began)
	m.agree(mpiRanks - 1)
	for _, r := range m.running() {
		values.everywhere(t, r.dial(t))
	}
	survivorsTalk(t, m)
	left := time.Now()
	wantStatus(t, m.term(), 0, m.said)
	if m.endings() != mpiRanks {
		t.Errorf("%d of %d ranks said to have ended in good order", m.endings(), mpiRanks)
	}
	t.Logf("one rank ended after %v, later the others after %v", ended.Round(time.Millisecond), time.Since(left).Round(time.Millisecond))
}
