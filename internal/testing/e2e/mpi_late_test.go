package e2e

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestMPILate has ranks join an MPI job that runs: one with a number of its own, and one in the
// place of a rank that died. They come by TCP; the others go on over MPI.
func TestMPILate(t *testing.T) {
	long(t)
	t.Run("openmpi", func(t *testing.T) {
		lateOverMPI(t, mpirun(t, "--mca", "orte_enable_recovery", "1"), func() []string { return nil })
	})
	c := startCluster(t)
	t.Run("mpich under slurm", func(t *testing.T) { lateOverMPI(t, c.srun("mpich", "pmi2"), c.step(t)) })
	t.Run("openmpi under slurm", func(t *testing.T) { lateOverMPI(t, c.srun("openmpi", "pmix"), c.step(t)) })
}

// step returns what begins the command line of one more task of the job that runs.
func (c cluster) step(t *testing.T) func() []string {
	return func() []string {
		t.Helper()
		queue := exec.Command("squeue", "-h", "-o", "%i", "--states=RUNNING")
		queue.Env = launcherEnv([]string{"SLURM_CONF=" + c.conf})
		out, err := queue.Output()
		id := strings.TrimSpace(string(out))
		if _, bad := strconv.Atoi(id); err != nil || bad != nil {
			t.Fatalf("the jobs that run are %q, %v", id, err)
		}
		return []string{"env", "SLURM_CONF=" + c.conf, "srun", "--jobid=" + id, "--overlap", "--mpi=none", "-N1", "-n1", "--kill-on-bad-exit=0"}
	}
}

func lateOverMPI(t *testing.T, l launcher, within func() []string) {
	secret := secretFile(t, t.TempDir())
	m := startMPI(t, l.overTCP(), "64MiB", true, "--peers-secret-file", secret)
	before := marks{"before", 20}
	before.put(t, m.ranks[0].dial(t))

	m.kill(victim)
	m.agree(mpiRanks - 1)
	var seeds []string
	for _, found := range gossipAddr.FindAllStringSubmatch(m.said.String(), -1) {
		seeds = append(seeds, found[1])
	}
	if len(seeds) != mpiRanks {
		t.Fatalf("seeds of %d ranks are %v", mpiRanks, seeds)
	}
	join := func(number int, at place) *rank {
		at.shm, at.lustre = m.shm, m.lustre
		r := startWithin(t, within(), at, "--rank", strconv.Itoa(number), "--peers-fabric", "tcp", "--peers-listen", "127.0.0.1:0",
			"--peers-gossip", "127.0.0.1:0", "--peers-seeds", strings.Join(seeds, ","), "--peers-secret-file", secret)
		pid := listener(t, at.socket)
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // its launcher's end is not its own
		return r
	}
	again := join(victim, m.ranks[victim].place)
	m.ranks[victim], m.pids[victim] = again, listener(t, again.socket)
	m.agree(mpiRanks)
	p := newPlace(t, m.shm)
	p.socket = filepath.Join(p.dir, "late.sock")
	late := join(mpiRanks, p)
	m.ranks, m.pids = append(m.ranks, late), append(m.pids, listener(t, late.socket))
	m.agree(mpiRanks + 1)

	for i, r := range m.ranks {
		want := "mpi"
		if i == victim || i == mpiRanks {
			want = "tcp"
		}
		if s := r.peers(t); s.Fabric != want || s.Ranks != mpiRanks+1 {
			t.Errorf("rank %d says that it is one of %d over %s; want %s", i, s.Ranks, s.Fabric, want)
		}
		before.everywhere(t, r.dial(t))
	}
	survivorsTalk(t, m)

	// Guests die and leave like any rank over TCP, and the world goes on.
	if err := syscall.Kill(m.pids[mpiRanks], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the late rank", func() bool { return over(late) })
	for _, r := range m.running() {
		until(t, "the death of the late rank as "+r.socket+" sees it", func() bool { return stateOf(t, r, mpiRanks) == "gone" })
	}
	survivorsTalk(t, m)
	if err := syscall.Kill(m.pids[victim], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the rank that came again", func() bool { return over(again) })
	if said := again.stderr.String(); !strings.Contains(said, `msg="cascaded ends"`) {
		t.Errorf("the rank that came again said %s", tailOf(said))
	}
	m.agree(mpiRanks - 1)
	m.term()
	if n := m.endings(); n != mpiRanks-1 {
		t.Errorf("%d of %d ranks of the world said to have ended in good order", n, mpiRanks-1)
	}
}
