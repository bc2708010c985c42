package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLaunchEndsAnyhow has jobs of a real Slurm with the epilog end at random moments: by scancel, by the death of a
// rank, of Slurm's own daemon of the ranks' step on a node, of the launcher, and by being put back into the queue. After
// each no arena and no process stays, and Slurm can use all nodes; where engine and launcher live on, the job has the
// engine's status.
func TestLaunchEndsAnyhow(t *testing.T) {
	long(t)
	ends, requeues := 3, 1
	if os.Getenv("CASCADE_SLURM_LONG") != "" { // make test-slurm-long
		ends, requeues = 20, 3
	}
	dir := t.TempDir()
	c := startCluster(t, "Epilog="+epilogScript(t, dir, program("cascade")), fmt.Sprint("FirstJobId=", 1<<25+os.Getpid()))
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for _, end := range []struct {
		name   string
		do     func(b *batchJob, node int)
		status int // -1: any
	}{
		{"scancel", func(b *batchJob, _ int) { c.slurm(t, "scancel", b.id) }, -1},
		{"rank", func(b *batchJob, node int) {
			socket := filepath.Join(b.place.dir, fmt.Sprintf("r%d.sock", node))
			if conn, err := net.Dial("unix", socket); err == nil { // early in a job there is none
				conn.Close()
				_ = syscall.Kill(listener(t, socket), syscall.SIGKILL) // it may have ended
			}
		}, 7},
		{"step", func(b *batchJob, node int) { b.kill(t, "slurmstepd: ["+b.id+".0]") }, 7},
		{"launcher", func(b *batchJob, _ int) { b.kill(t, program("cascade")+" launch") }, -1},
	} {
		t.Run(end.name, func(t *testing.T) {
			for range ends {
				moment := time.Duration(r.Int64N(int64(4 * time.Second)))
				whole := false
				b := c.endsAt(t, dir, moment, func(b *batchJob) {
					whole = strings.Contains(b.words(), "one cache")
					end.do(b, r.IntN(mpiRanks))
				})
				// Before that there is no engine, and without a rank there will be none.
				if got := b.status(t); end.status >= 0 && whole && got != end.status {
					t.Errorf("%v after the start: exit status %d, want %d", moment, got, end.status)
				}
				b.gone(t)
			}
		})
	}
	t.Run("requeue", func(t *testing.T) {
		b := c.endsAt(t, dir, 0, func(*batchJob) {})
		for n := 1; n <= requeues; n++ {
			time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
			c.slurm(t, "scontrol", "requeue", b.id)
			anew := false
			for end := time.Now().Add(5 * patience); !anew && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
				state := c.slurm(t, "scontrol", "show", "job", b.id)
				anew = strings.Contains(state, "Restarts="+strconv.Itoa(n)+" ") && strings.Contains(state, "JobState=RUNNING")
				// Slurm would let it wait for two minutes. While a daemon of the run before may still report its end,
				// that would be taken for the end of the next.
				if strings.Contains(state, "JobState=PENDING") && len(processesOf(t, "slurmstepd: ["+b.id+".")) == 0 {
					c.slurm(t, "scontrol", "update", "JobId="+b.id, "StartTime=now")
				}
			}
			if !anew {
				t.Fatalf("it does not run anew: %s", c.slurm(t, "scontrol", "show", "job", b.id))
			}
		}
		b.goOn(t)
		if got := b.status(t); got != 7 {
			t.Errorf("exit status %d, want 7", got)
		}
		b.gone(t)
	})
}

// endsAt runs a job whose engine replays a trace and then waits for goOn, and has something end at a moment after its start.
// Its launcher waits for a rank that does not come for a short time. dir is for its wrapper.
func (c cluster) endsAt(t *testing.T, dir string, moment time.Duration, end func(b *batchJob)) *batchJob {
	t.Helper()
	wrapper := filepath.Join(dir, "cascade")
	script := fmt.Sprintf("#!/bin/sh\nshift\nexec %q launch --ready 20s \"$@\"\n", program("cascade"))
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	b := c.batch(t, replayTrace+` >/dev/null; echo replayed; while [ ! -e goon ]; do sleep 0.1; done; exit 7`,
		[]string{"TRACE=" + newTrace(t), "CASCADE=" + wrapper, "CASCADE_DEADLINE_DRAIN=5s"}, "--requeue")
	until(t, "the job runs", func() bool { return strings.Contains(c.slurm(t, "scontrol", "show", "job", b.id), "JobState=RUNNING") })
	time.Sleep(moment)
	end(b)
	if moment > 0 {
		b.goOn(t)
	}
	return b
}

// goOn lets the engine end.
func (b *batchJob) goOn(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.place.dir, "goon"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// kill kills a process: one whose command line has a text. Early in a job there may be none.
func (b *batchJob) kill(t *testing.T, text string) {
	t.Helper()
	for pid := range processesOf(t, text) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have just ended
		return
	}
}

// draining finds nodes that Slurm would not use any more.
var draining = regexp.MustCompile(`(?i)drain|down|fail`)

// gone fails the test unless no arena, socket, secret and process of the job is left, and Slurm can use all nodes.
func (b *batchJob) gone(t *testing.T) {
	t.Helper()
	until(t, "idle nodes", func() bool {
		return strings.Count(b.c.slurm(t, "sinfo", "--noheader", "--Node", "--format=%T"), "idle\n") == mpiRanks
	})
	if states := b.c.slurm(t, "sinfo", "--noheader", "--Node", "--format=%N %T %E"); draining.MatchString(states) {
		t.Errorf("nodes: %s", states)
	}
	leavesNothing(t, b.place)
	until(t, "the end of all processes", func() bool { return len(processesOf(t, b.place.dir)) == 0 })
}
