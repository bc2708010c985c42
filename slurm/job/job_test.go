package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// environment reads variables as a real Slurm 22.05 set them: NAME=value on lines,
// and more that replace some.
func environment(t *testing.T, file string, more ...string) func(string) string {
	t.Helper()
	values := map[string]string{}
	var lines []string
	if file != "" {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		lines = strings.Split(string(text), "\n")
	}
	for _, line := range append(lines, more...) {
		name, value, _ := strings.Cut(line, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

func TestRead(t *testing.T) {
	const mib = 1 << 20
	three := []string{"n0", "n1", "n2"}
	parts := func(first, second int64) []Component {
		return []Component{{2, three[:1], first}, {3, three[1:], second}}
	}
	for name, c := range map[string]struct {
		file string
		more []string
		want Job
	}{
		"batch script":    {"batch.env", nil, Job{ID: 1, Node: "n0", Nodes: three, Tasks: 3, Memory: 200 * mib}},
		"step":            {"step.env", nil, Job{ID: 1, Node: "n2", Nodes: three, Tasks: 3, Memory: 200 * mib, Step: &Step{ID: 0, Nodes: three, Tasks: 3, Rank: 2}}},
		"overlapping":     {"overlap.env", nil, Job{ID: 1, Node: "n0", Nodes: three, Tasks: 1, Memory: 200 * mib, Step: &Step{ID: 1, Nodes: three[:1], Tasks: 1}}},
		"heterogeneous":   {"het.env", nil, Job{ID: 2, Node: "n0", Nodes: three, Memory: 50 * mib, Components: parts(50*mib, 0)}},
		"its second part": {"het-step.env", nil, Job{ID: 2, Node: "n1", Nodes: three, Tasks: 3, Components: parts(0, 0), Step: &Step{ID: 1, Nodes: three, Tasks: 3, Rank: 1}}},
		"packs of Slurm 19": {"", []string{"SLURM_JOB_ID=2", "SLURM_PACK_SIZE=2", "SLURM_JOB_ID_PACK_GROUP_0=2", "SLURM_JOB_ID_PACK_GROUP_1=3",
			"SLURM_JOB_NODELIST_PACK_GROUP_0=n0", "SLURM_JOB_NODELIST_PACK_GROUP_1=n[1-2]", "SLURM_MEM_PER_NODE_PACK_GROUP_1=7", "SLURMD_NODENAME=n2"},
			Job{ID: 2, Node: "n2", Nodes: three, Memory: 7 * mib, Components: parts(0, 7*mib)}},
		"array":          {"array.env", nil, Job{ID: 4, Node: "n0", Nodes: three[:1], Array: &Array{4, 4}}},
		"requeued":       {"batch.env", []string{"SLURM_RESTART_COUNT=2"}, Job{ID: 1, Node: "n0", Nodes: three, Tasks: 3, Memory: 200 * mib, Restarts: 2}},
		"end":            {"batch.env", []string{"SLURM_JOB_END_TIME=1795869802"}, Job{ID: 1, Node: "n0", Nodes: three, Tasks: 3, Memory: 200 * mib, End: time.Unix(1795869802, 0)}},
		"memory by CPUs": {"", []string{"SLURM_JOB_ID=1", "SLURM_MEM_PER_CPU=100", "SLURM_CPUS_ON_NODE=8"}, Job{ID: 1, Memory: 800 * mib}},
		"salloc":         {"", []string{"SLURM_JOB_ID=1", "SLURM_NODELIST=n[0-2]"}, Job{ID: 1, Nodes: three}},
		"batch as a step": {"batch.env", []string{"SLURM_STEP_ID=4294967291"},
			Job{ID: 1, Node: "n0", Nodes: three, Tasks: 3, Memory: 200 * mib}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(environment(t, c.file, c.more...))
			if err != nil || !reflect.DeepEqual(*got, c.want) {
				t.Errorf("%+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	if j, err := Read(environment(t, "", "SLURM_PROCID=3")); !errors.Is(err, ErrOutside) {
		t.Errorf("outside Slurm: %+v, %v", j, err)
	}
	for _, c := range []struct{ file, bad string }{
		{"batch.env", "SLURM_JOB_ID=x"},
		{"batch.env", "SLURM_JOB_ID=-1"},
		{"batch.env", "SLURM_JOB_NODELIST=n[0-"},
		{"batch.env", "SLURM_JOB_NODELIST=n[0-99999999]"},
		{"batch.env", "SLURM_MEM_PER_NODE=9223372036854775807"},
		{"overlap.env", "SLURM_PROCID=1"},
		{"step.env", "SLURM_STEP_NODELIST=]"},
		{"het.env", "SLURM_HET_SIZE=1000000000"},
		{"het.env", "SLURM_JOB_ID_HET_GROUP_1=three"},
		{"het.env", "SLURM_MEM_PER_CPU_HET_GROUP_0=9223372036854775807"},
	} {
		name, _, _ := strings.Cut(c.bad, "=")
		j, err := Read(environment(t, c.file, c.bad))
		if !errors.Is(err, ErrEnvironment) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %+v, %v", c.bad, j, err)
		}
	}
}

func TestState(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		id   int
		want State
	}{
		// Its name is "a job NodeList=x EndTime=7".
		"time limit":         {"limit.scontrol", 9, State{State: "RUNNING", End: time.Unix(1795869802, 0), Nodes: []string{"n0", "n1"}}},
		"first component":    {"het.scontrol", 2, State{State: "RUNNING", Nodes: []string{"n0"}}},
		"second component":   {"het.scontrol", 3, State{State: "RUNNING", Nodes: []string{"n1", "n2"}}},
		"job of an array":    {"array.scontrol", 4, State{State: "RUNNING", Nodes: []string{"n0"}}},
		"another of the one": {"array.scontrol", 5, State{State: "RUNNING", Nodes: []string{"n0"}}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", c.file))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseState(string(text), c.id); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
		if _, err := parseState(string(text), 4711); !errors.Is(err, ErrQuery) {
			t.Errorf("%s: a job that is not there: %v", name, err)
		}
	}
	for _, bad := range []string{"", "JobId=1", "JobId=1 JobState=RUNNING\n   JobState=", "JobId=1\n   JobState=RUNNING Restarts=x",
		"JobId=1\n   JobState=RUNNING Restarts=0 EndTime=2026-11-28T12:31:32", "JobId=1\n   JobState=RUNNING Restarts=0 EndTime=Unknown NodeList=n["} {
		if s, err := parseState(bad, 1); !errors.Is(err, ErrQuery) {
			t.Errorf("%q: %+v, %v", bad, s, err)
		}
	}
}

// TestQuery runs a program in scontrol's place: what it prints on standard error is
// no data, and one that hangs is ended.
func TestQuery(t *testing.T) {
	answer, err := filepath.Abs("testdata/limit.scontrol")
	if err != nil {
		t.Fatal(err)
	}
	scontrol := func(script string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "scontrol"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
	}
	scontrol(fmt.Sprintf(`echo "JobId=9 JobState=FAILED" >&2; [ "$*$SLURM_TIME_FORMAT" = "show job 9%%s" ] && cat %s`, answer))
	s, err := Query(t.Context(), &Job{ID: 9}, os.Environ())
	if err != nil || s.State != "RUNNING" || s.End.Unix() != 1795869802 {
		t.Errorf("%+v, %v", s, err)
	}
	scontrol("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
	if _, err := Query(t.Context(), &Job{ID: 9}, os.Environ()); !errors.Is(err, ErrQuery) || !strings.Contains(err.Error(), "Invalid job id") {
		t.Errorf("a job that is gone: %v", err)
	}
	scontrol("exec sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Query(ctx, &Job{ID: 9}, os.Environ()); !errors.Is(err, ErrQuery) {
		t.Errorf("a scontrol that hangs: %v", err)
	}
	if got := (&Job{ID: 5, Array: &Array{4, 3}}).Name(); got != "4_3" {
		t.Errorf("a job of an array is %s", got)
	}
}
