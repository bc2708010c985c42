package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestLaunchPrivateShm runs jobs of a real Slurm whose /tmp and /dev/shm are their own, by job_container/tmpfs: the arena
// is cut to what there is, the doctor knows whose it is, what a killed rank left is rescued, and when the
// launcher is killed too nothing is left on the node.
func TestLaunchPrivateShm(t *testing.T) {
	long(t)
	t.Setenv("TMPDIR", "/var/tmp") // jobs do not see /tmp
	base := newPlace(t, "").dir
	var nodes strings.Builder
	for i := range mpiRanks {
		fmt.Fprintf(&nodes, "NodeName=n%d AutoBasePath=true BasePath=%s/n%d\n", i, base, i)
	}
	c := startClusterWith(t, map[string]string{"job_container.conf": nodes.String()}, "PrologFlags=Contain", "JobContainerType=job_container/tmpfs")
	at := newPlace(t, "").withLustre()
	for _, name := range []string{"cascade", "cascaded"} {
		text, err := os.ReadFile(program(name))
		if err == nil {
			err = os.WriteFile(filepath.Join(at.dir, name), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cli := filepath.Join(at.dir, "cascade")
	env := []string{"TRACE=" + newTrace(t), "CASCADE=" + cli, "CLI=" + cli}

	b := c.batchAt(t, at, `echo job $SLURM_JOB_ID; df --output=size -B1 /dev/shm; "$CLI" doctor; ls /dev/shm; `+replayTrace+`; echo replayed; until [ -e killed ]; do sleep .1; done; exit 7`, env, "--mem=0")
	until(t, "replay", func() bool { return strings.Contains(b.words(), "replayed") })
	words := b.words()
	wantWords(t, words, "of job "+b.id+" alone (job_container/tmpfs)", filepath.Base(strings.TrimSuffix(at.arena, ".arena"))+"-0.arena")
	if left, err := filepath.Glob(strings.TrimSuffix(at.arena, ".arena") + "*"); len(left) > 0 || err != nil {
		t.Errorf("the arenas are the node's: %q, %v", left, err)
	}
	if m := regexp.MustCompile(`1B-blocks\n\s*(\d+)`).FindStringSubmatch(words); m == nil {
		t.Errorf("no size of /dev/shm in\n%s", words)
	} else if size, err := strconv.ParseInt(m[1], 10, 64); err != nil || !strings.Contains(words, "each rank's arena has ") {
		t.Errorf("/dev/shm has %d bytes, %v, and the arena's size is not explained:\n%s", size, err, words)
	}
	err := errors.Join(syscall.Kill(listener(t, filepath.Join(at.dir, "r0.sock")), syscall.SIGKILL), os.WriteFile(filepath.Join(at.dir, "killed"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	wantWords(t, b.words(), "what killed ranks left is written to")
	b.cleared(t)

	next := c.batchAt(t, at, replayTrace+`; echo launcher $PPID; while kill -0 $PPID; do sleep .1; done`, env, "--nodes=2", "--no-requeue")
	until(t, "next replay", func() bool { return launcherPID.MatchString(next.words()) })
	if found := hitRatio.FindStringSubmatch(next.words()); found == nil {
		t.Errorf("no hit ratio in\n%s", next.words())
	} else if ratio, err := strconv.ParseFloat(found[1], 64); err != nil || ratio < 0.95 {
		t.Errorf("of what the first job stored the next finds %s, %v", found[1], err)
	}
	pid, err := strconv.Atoi(launcherPID.FindStringSubmatch(next.words())[1])
	if err == nil {
		err = errors.Join(syscall.Kill(listener(t, filepath.Join(at.dir, "r0.sock")), syscall.SIGKILL), syscall.Kill(pid, syscall.SIGKILL))
	}
	if err != nil {
		t.Fatal(err)
	}
	next.status(t)
	until(t, "the end of the job's file systems", func() bool {
		left, err := filepath.Glob(filepath.Join(base, "n*", "*", next.id))
		return len(left) == 0 && err == nil
	})
	until(t, "the end of its processes", func() bool { return len(processesOf(t, at.dir)) == 0 })
}
