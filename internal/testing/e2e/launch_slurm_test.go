package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// batchJob is a job on the cluster of a test, whose script runs cascade launch.
type batchJob struct {
	c     cluster
	place place
	id    string
}

// batch submits configs/slurm/campaign.sbatch with an engine, a script of sh. The options are
// sbatch's. Ranks of several slurmd share a host here: they differ by their numbers.
func (c cluster) batch(t *testing.T, engine string, env []string, options ...string) *batchJob {
	t.Helper()
	return c.batchAt(t, newPlace(t, "16MiB").withLustre(), engine, env, options...)
}

// batchAt is batch of a job whose campaign is that of a place.
func (c cluster) batchAt(t *testing.T, at place, engine string, env []string, options ...string) *batchJob {
	t.Helper()
	b := &batchJob{c: c, place: at}
	config := filepath.Join(b.place.dir, "cascade.toml")
	text := fmt.Sprintf("socket = %q\n[shm]\npath = %q\n[lustre]\nindex = %q\n[peers]\nadvertise = \"127.0.0.1\"\n",
		filepath.Join(b.place.dir, "r{rank}.sock"), strings.TrimSuffix(b.place.arena, ".arena")+"-{rank}.arena", filepath.Join(b.place.dir, "index"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../../../configs/slurm/campaign.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--parsable", "--chdir=" + b.place.dir, "--output=" + filepath.Join(b.place.dir, "job.out"), "--nodes=3", "--time=10"}, options...)
	cmd := exec.Command("sbatch", append(args, script, "sh", "-c", engine)...)
	cmd.Env = append(launcherEnv([]string{"SLURM_CONF=" + c.conf, "CASCADE=" + program("cascade"), "CASCADE_CONFIG=" + config,
		"CASCADE_LUSTRE_DIR=" + b.place.lustre, "CLI=" + program("cascade")}), env...)
	if b.place.shm != "" {
		cmd.Env = append(cmd.Env, "CASCADE_SHM_BYTES="+b.place.shm)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	b.id = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(b.place.dir, "cascade-*.log"))
			for _, name := range append(logs, filepath.Join(b.place.dir, "job.out")) {
				text, _ := os.ReadFile(name)
				t.Logf("%s:\n%s", filepath.Base(name), tailOf(string(text)))
			}
		}
		b.c.slurm(t, "scancel", b.id)
	})
	return b
}

// slurm runs a command of Slurm and returns its standard output.
func (c cluster) slurm(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = launcherEnv([]string{"SLURM_CONF=" + c.conf})
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Logf("%s %q: %v: %s", name, args, err, exit.Stderr)
	} else if err != nil {
		t.Error(err)
	}
	return string(out)
}

// words are what the launcher and the engine wrote.
func (b *batchJob) words() string {
	text, _ := os.ReadFile(filepath.Join(b.place.dir, "job.out")) // not there before the job begins
	return string(text)
}

// ending is the state and the exit status of the first job that scontrol prints: of a
// heterogeneous one, that with the script.
var ending = regexp.MustCompile(`(?s)JobState=(\w+).*?ExitCode=(\d+):`)

// status waits for the job's end and returns its exit status.
func (b *batchJob) status(t *testing.T) (status int) {
	t.Helper()
	// Slurm starts the job, ranks find each other and drain, each with its own patience.
	for end := time.Now().Add(5 * patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		found := ending.FindStringSubmatch(b.c.slurm(t, "scontrol", "show", "job", b.id))
		if found == nil {
			continue
		}
		switch found[1] {
		case "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT":
			status, _ = strconv.Atoi(found[2]) // digits
			return status
		}
	}
	t.Fatalf("job %s does not end", b.id)
	return 0
}

// sawRing fails the test unless the engine, showRing and exit 7, saw three ranks, the job has its status,
// and is cleared.
func (b *batchJob) sawRing(t *testing.T) {
	t.Helper()
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	if n := len(aliveRanks.FindAllString(b.words(), -1)); n != 3 {
		t.Errorf("the engine saw %d ranks, want 3", n)
	}
	b.cleared(t)
}

// cleared fails the test unless the job left nothing on the nodes, and Slurm can use
// all of them.
func (b *batchJob) cleared(t *testing.T) {
	t.Helper()
	leavesNothing(t, b.place)
	if pids := processesOf(t, b.place.dir); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	until(t, "idle nodes", func() bool {
		states := strings.Fields(b.c.slurm(t, "sinfo", "--noheader", "--Node", "--format=%T"))
		return strings.Count(strings.Join(states, " "), "idle") == mpiRanks
	})
}

// processesOf finds the command lines, by process, that have a text.
func processesOf(t *testing.T, text string) map[int]string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, name := range names {
		line, _ := os.ReadFile(name) // it may have just ended
		words := strings.ReplaceAll(string(line), "\x00", " ")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && strings.Contains(words, text) {
			found[pid] = words
		}
	}
	return found
}

// aliveRanks counts the ranks that an engine saw with cascade status.
var aliveRanks = regexp.MustCompile(`(?m)^\d+ +alive `)

const showRing = `"$CLI" status; `

// TestLaunchUnderSlurm runs cascade launch in batch jobs of a real Slurm.
func TestLaunchUnderSlurm(t *testing.T) {
	long(t)
	c := startCluster(t)
	t.Run("a replay", func(t *testing.T) { c.launchReplay(t) })
	t.Run("a signal", func(t *testing.T) { c.launchSignal(t) })
	t.Run("the time limit", func(t *testing.T) { c.launchLimit(t) })
	t.Run("a killed rank", func(t *testing.T) { c.launchKilled(t) })
	t.Run("a lost step", func(t *testing.T) { c.launchLostStep(t) })
	t.Run("a rank that does not start", func(t *testing.T) { c.launchMissing(t) })
	t.Run("half of the memory", func(t *testing.T) {
		b := c.batchAt(t, newPlace(t, "").withLustre(), showRing+"exit 7", nil, "--mem=100")
		b.sawRing(t)
		wantWords(t, b.words(), "each rank's arena has 50.0 MiB, half of the 100 MiB of memory that Slurm gives")
	})
	t.Run("mpich", func(t *testing.T) { c.launchMPICH(t) })
	for name, options := range map[string][]string{
		"a heterogeneous job": {"--nodes=1", "--mem-per-cpu=50", ":", "--nodes=2"},
		"an array":            {"--array=3"},
		"shared nodes":        {"--ntasks-per-node=2", "--mem-per-cpu=50", "--export=ALL"},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.batch(t, showRing+"exit 7", nil, options...)
			b.sawRing(t)
		})
	}
}

const replayTrace = `"$CLI" trace replay --json --trace "$TRACE" --socket "$CASCADE_SOCKET" --block-bytes 4KiB`

// newTrace makes a trace of some conversations.
func newTrace(t *testing.T) string {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if out, err := exec.Command(program("cascade"), "trace", "synth", "--requests", "40", "--output", trace).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return trace
}

var (
	hitRatio   = regexp.MustCompile(`"hit_ratio_blocks": ([0-9.e-]+)`)
	wrongBytes = regexp.MustCompile(`"wrong_bytes": (\d+)`)
)

// launchLimit has a job come to its time limit, of which no signal gives notice: engine and ranks end in time. The next
// job of the campaign, on fewer nodes, has what the first one stored.
func (c cluster) launchLimit(t *testing.T) {
	env := []string{"TRACE=" + newTrace(t)}
	engine := `trap 'echo engine ends; exit 3' TERM; ` + replayTrace + `; echo replayed; while :; do sleep 0.1; done`
	// The signal of the script's own is one that nobody minds.
	b := c.batch(t, engine, env, "--time=1", "--signal=B:URG@1")
	if got := b.status(t); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
	wantWords(t, b.words(), "before that the engine is asked to end", "replayed", "engine ends", "the ranks drain")
	if state := b.c.slurm(t, "scontrol", "show", "job", b.id); strings.Contains(state, "TIMEOUT") {
		t.Errorf("Slurm had to end it: %s", state)
	}
	b.cleared(t)
	c.foundAgain(t, b.place, env)
}

// foundAgain runs the next job of a campaign, on two nodes, which finds what the replay of a trace stored.
func (c cluster) foundAgain(t *testing.T, at place, env []string) {
	t.Helper()
	again := c.batchAt(t, at, replayTrace, env, "--nodes=2")
	if got := again.status(t); got != 0 {
		t.Errorf("the next job: exit status %d", got)
	}
	found, wrong := hitRatio.FindStringSubmatch(again.words()), wrongBytes.FindStringSubmatch(again.words())
	if found == nil || wrong == nil || wrong[1] != "0" {
		t.Fatalf("the next job prints no hit ratio, or finds wrong bytes:\n%s", again.words())
	}
	if ratio, err := strconv.ParseFloat(found[1], 64); err != nil || ratio < 0.95 {
		t.Errorf("of what the first job stored the next finds %s, %v", found[1], err)
	}
	again.cleared(t)
}

// launchKilled has a rank killed that has all the blocks, undrained: at the end of the job they are in lustre,
// and nothing of it stays on its node.
func (c cluster) launchKilled(t *testing.T) {
	env := []string{"TRACE=" + newTrace(t)}
	b := c.batch(t, replayTrace+`; echo replayed; while [ ! -e killed ]; do sleep 0.1; done; exit 7`, env)
	until(t, "replay", func() bool { return strings.Contains(b.words(), "replayed") })
	if err := syscall.Kill(listener(t, filepath.Join(b.place.dir, "r0.sock")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.place.dir, "killed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	wantWords(t, b.words(), "not all ranks ended in good order", "what killed ranks left is written to")
	b.cleared(t)
	c.foundAgain(t, b.place, env)
}

// launchLostStep has Slurm lose its daemon of a rank's step: that rank drains and ends by itself, and the launcher waits
// for the rank instead of for srun, which waits without end.
func (c cluster) launchLostStep(t *testing.T) {
	env := []string{"TRACE=" + newTrace(t)}
	b := c.batch(t, replayTrace+`; echo replayed; while [ ! -e killed ]; do sleep 0.1; done; exit 7`, env)
	until(t, "replay", func() bool { return strings.Contains(b.words(), "replayed") })
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", listener(t, filepath.Join(b.place.dir, "r0.sock"))))
	var pid, parent int
	var state rune
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d (cascaded) %c %d", &pid, &state, &parent)
	}
	if err == nil {
		err = syscall.Kill(parent, syscall.SIGKILL)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(b.place.dir, "killed"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	wantWords(t, b.words(), "Slurm has lost a part of their step")
	b.cleared(t)
	c.foundAgain(t, b.place, env)
}

// launchMissing has one rank end at its start: the launcher does not wait for it in vain, and shows what is known of it.
func (c cluster) launchMissing(t *testing.T) {
	dir := t.TempDir()
	ranks, wrapper := filepath.Join(dir, "ranks"), filepath.Join(dir, "cascade")
	err := errors.Join(
		os.WriteFile(ranks, []byte(fmt.Sprintf("#!/bin/sh\n[ \"$SLURM_PROCID\" != 1 ] || kill -KILL $$\nexec %q \"$@\"\n", program("cascaded"))), 0o700),
		os.WriteFile(wrapper, []byte(fmt.Sprintf("#!/bin/sh\nshift\nexec %q launch --cascaded %q \"$@\"\n", program("cascade"), ranks)), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	b := c.batch(t, "touch started", []string{"CASCADE=" + wrapper})
	if got := b.status(t); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
	wantWords(t, b.words(), "the rank of n1 has ended", "the end of "+filepath.Join(b.place.dir, "cascade-"+b.id+".log"))
	if _, err := os.Stat(filepath.Join(b.place.dir, "started")); err == nil {
		t.Error("the engine was started")
	}
	b.cleared(t)
}

// launchReplay has a replay as the engine: all that it asks for again comes from its
// rank, and the job's exit status is the engine's.
func (c cluster) launchReplay(t *testing.T) {
	b := c.batch(t, showRing+replayTrace+` && exit 7`, []string{"TRACE=" + newTrace(t)})
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	if n := len(aliveRanks.FindAllString(b.words(), -1)); n != 3 {
		t.Errorf("the engine saw %d ranks, want 3", n)
	}
	wantWords(t, b.words(), "the ranks are one cache")
	b.cleared(t)
	segments, err := filepath.Glob(filepath.Join(b.place.lustre, "*", "agg_rank*.bin"))
	if err != nil || len(segments) == 0 {
		t.Errorf("nothing was drained, %v", err)
	}
}

// launchMPICH has ranks that talk over MPI: the launcher finds the plugin that their
// program wants. Open MPI, which crashes in one start of twenty under Slurm 22.05
// (docs/mpi.md, Under Slurm), is left to TestMPIUnderSlurm, which starts it again then.
func (c cluster) launchMPICH(t *testing.T) {
	wrapper := filepath.Join(t.TempDir(), "cascade")
	script := fmt.Sprintf("#!/bin/sh\nshift\nexec %q launch --cascaded %q \"$@\"\n", program("cascade"), mpiProgram(t, "mpich"))
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	b := c.batch(t, showRing+"exit 7", []string{"CASCADE=" + wrapper})
	b.sawRing(t)
}

// launchSignal ends the batch script as the notice before a time limit does.
func (c cluster) launchSignal(t *testing.T) {
	b := c.batch(t, `trap 'echo engine ends; exit 3' TERM; echo engine up; while :; do sleep 0.1; done`, nil)
	until(t, "engine", func() bool { return strings.Contains(b.words(), "engine up") })
	began := time.Now()
	c.slurm(t, "scancel", "--signal=TERM", "--batch", b.id)
	if got := b.status(t); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
	wantWords(t, b.words(), "engine ends", "the ranks drain")
	b.cleared(t)
	t.Logf("the job ended %v after the signal", time.Since(began).Round(time.Millisecond))
}
