package e2e

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// launcherPID is what an engine prints of its launcher.
var launcherPID = regexp.MustCompile(`launcher (\d+)`)

// TestLaunchEpilog kills, in a job of a real Slurm with the epilog, the ranks and then the launcher, so that nobody is
// left to clean up but the epilog. A rank that has left its step, which Slurm does not find, goes too. Slurm can use the
// nodes afterwards, and what is not the job's stays.
func TestLaunchEpilog(t *testing.T) {
	long(t)
	const ranks = 3 // of a job, on so many nodes
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	wrapper := filepath.Join(dir, "wrapper.sh")
	text := fmt.Sprintf("#!/bin/sh\n%s\ns=$?\necho \"$SLURM_JOB_ID $s\" >>%s\nexit $s\n", epilogScript(t, dir, program("cascade")), said)
	if err := os.WriteFile(wrapper, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	// The number of the job is of this test alone: another Slurm on this machine has jobs of this user too.
	c := startCluster(t, "Epilog="+wrapper, fmt.Sprint("FirstJobId=", 1<<24+os.Getpid()))
	workstation, stray := start(t, newPlace(t, "8MiB")), newPlace(t, "8MiB")
	b := c.batch(t, fmt.Sprintf(`(setsid env -u CASCADE_CONFIG -u CASCADE_LUSTRE_DIR %s --socket %s --shm-path %s --shm-bytes 8MiB >/dev/null 2>&1 &)
		echo engine up, launcher $PPID; while kill -0 $PPID; do sleep 0.1; done`, program("cascaded"), stray.socket, stray.arena), nil, "--no-requeue")
	until(t, "engine", func() bool { return strings.Contains(b.words(), "engine up") })
	until(t, "rank beside the step", func() bool {
		c, err := net.Dial("unix", stray.socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	launcher, err := strconv.Atoi(launcherPID.FindStringSubmatch(b.words())[1])
	if err != nil {
		t.Fatal(err)
	}
	victims := []int{}
	for i := range ranks {
		victims = append(victims, listener(t, filepath.Join(b.place.dir, fmt.Sprintf("r%d.sock", i))))
	}
	for _, pid := range append(victims, launcher) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(strings.TrimSuffix(b.place.arena, ".arena") + "*"); err != nil || len(left) != ranks {
		t.Errorf("the killed ranks leave %q, %v", left, err)
	}
	b.status(t)
	until(t, "end of the epilogs", func() bool {
		text, _ := os.ReadFile(said) // not there before the first
		return strings.Count(string(text), b.id+" 0\n") == ranks
	})

	leavesNothing(t, b.place)
	if found := processesOf(t, stray.dir); slices.ContainsFunc(slices.Collect(maps.Values(found)), func(line string) bool { return strings.HasPrefix(line, program("cascaded")) }) || stray.hasArena() {
		t.Errorf("of the rank beside the step there are %v, its arena: %v", found, stray.hasArena())
	}
	until(t, "idle nodes", func() bool {
		return strings.Count(b.c.slurm(t, "sinfo", "--noheader", "--Node", "--format=%T"), "idle\n") == mpiRanks
	})
	if reasons := b.c.slurm(t, "sinfo", "--noheader", "--list-reasons"); reasons != "" {
		t.Errorf("nodes have reasons: %s", reasons)
	}
	if err := workstation.dial(t).Set("k", []byte("v")); err != nil || !workstation.hasArena() {
		t.Errorf("the rank outside Slurm: %v, its arena: %v", err, workstation.hasArena())
	}
}
