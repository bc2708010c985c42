package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plant writes files below a new root.
func plant(t *testing.T, files map[string]string) Node {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Node{Root: root}
}

// TestLimitAndLeft reads groups as systemd, Slurm and containers lay them out.
func TestLimitAndLeft(t *testing.T) {
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		files map[string]string
		limit Limit
		left  int64
		of    string
	}{
		"nothing to be read": {nil, Limit{Bytes: math.MaxInt64}, math.MaxInt64, ""},
		"no limit": {map[string]string{
			"proc/self/cgroup": "0::/user.slice\n", "proc/meminfo": "MemAvailable: 1048576 kB\n", "sys/fs/cgroup/user.slice/memory.max": "max\n",
		}, Limit{Bytes: math.MaxInt64}, gib, "the memory of the node"},
		"job of Slurm, version 2": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "proc/meminfo": "MemAvailable: 104857600 kB\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max":            "2147483648\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.current":        "1610612736\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.stat":           "anon 5\nactive_file 268435456\ninactive_file 134217728\nslab_reclaimable 134217728\nshmem 1000\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max":     "max\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.current": "5000\n",
		}, Limit{2 * gib, "/system.slice/slurmstepd.scope/job_7"}, gib, "control group /system.slice/slurmstepd.scope/job_7 with a limit of 2147483648 bytes"},
		"memory.high is lower": {map[string]string{
			"proc/self/cgroup": "0::/s\n", "sys/fs/cgroup/s/memory.max": "2147483648\n", "sys/fs/cgroup/s/memory.high": "1073741824\n", "sys/fs/cgroup/s/memory.current": "1\n",
		}, Limit{gib, "/s"}, gib - 1, "control group /s"},
		"another one is fuller": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "2147483648\n", "sys/fs/cgroup/a/memory.current": "2147483000\n",
			"sys/fs/cgroup/a/b/memory.max": "1073741824\n", "sys/fs/cgroup/a/b/memory.current": "1\n",
		}, Limit{gib, "/a/b"}, 648, "control group /a with"},
		"over the limit": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.high": "1000\n", "sys/fs/cgroup/a/memory.current": "2000\n",
		}, Limit{1000, "/a"}, 0, "control group /a"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "12:cpuset:/\n5:memory:/slurm/uid_0/job_3\n0::/\n",
			"sys/fs/cgroup/memory/slurm/uid_0/job_3/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/slurm/uid_0/job_3/memory.usage_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/slurm/uid_0/job_3/memory.stat":           "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":                   "9223372036854771712\n",
		}, Limit{gib, "/slurm/uid_0/job_3"}, gib - 500, "control group /slurm/uid_0/job_3"},
		"container, version 1": {map[string]string{
			"proc/self/cgroup":                           "5:memory:/docker/abc\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
		}, Limit{gib, "/"}, gib, "control group /"},
		"usage is hidden": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1000\n",
		}, Limit{1000, "/a"}, math.MaxInt64, ""},
	} {
		n := plant(t, c.files)
		left, of := n.Left()
		if limit := n.Limit(); limit != c.limit || left != c.left || !strings.HasPrefix(of, c.of) {
			t.Errorf("%s: limit %+v, left %d of %q; want %+v, %d, %q", name, limit, left, of, c.limit, c.left, c.of)
		}
	}
}

// TestHere reads the files of this machine.
func TestHere(t *testing.T) {
	n := Node{Root: "/"}
	available, err := n.Available()
	if err != nil || available <= 0 {
		t.Errorf("%d bytes available, %v", available, err)
	}
	if left, of := n.Left(); of == "" || left <= 0 {
		t.Errorf("%d bytes left of %q", left, of)
	}
}

func TestTasks(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no /proc": {nil, math.MaxInt64},
		"none":     {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/pids.max": "max\n"}, math.MaxInt64},
		"version 2, the group above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/pids.max": "300\n", "sys/fs/cgroup/a/b/pids.max": "max\n"}, 300},
		"version 1": {map[string]string{
			"proc/self/cgroup": "8:pids:/a\n4:memory:/m\n0::/\n", "sys/fs/cgroup/pids/a/pids.max": "200\n", "sys/fs/cgroup/memory/m/pids.max": "1\n"}, 200},
		"path of another namespace": {map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/pids.max": "100\n"}, 100},
	} {
		if got := plant(t, tc.files).Tasks(); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
