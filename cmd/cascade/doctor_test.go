package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/units"
	"cascadekv/internal/vfs"
)

// plant writes files below root.
func plant(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// healthy is a node where nothing is wrong, and a configuration for it.
func healthy(t *testing.T) (machine, *config.Config) {
	t.Helper()
	root := t.TempDir()
	plant(t, root, map[string]string{
		"proc/meminfo":     "MemTotal:       64000000 kB\nMemAvailable:   32000000 kB\n",
		"proc/self/cgroup": "0::/system.slice/job_1/step_0\n",
		"sys/fs/cgroup/system.slice/job_1/memory.max":        "17179869184\n",
		"sys/fs/cgroup/system.slice/job_1/step_0/memory.max": "max\n",
	})
	lustre := t.TempDir()
	m := machine{root: root,
		statfs: func(path string) (unix.Statfs_t, error) {
			if path == lustre {
				return unix.Statfs_t{Type: vfs.LustreType, Bsize: 4096, Blocks: 1 << 40, Bavail: 1 << 40}, nil
			}
			return unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096, Blocks: 2 << 20, Bavail: 1 << 20}, nil // 8 GiB, half of it free
		},
		rlimit: func(int) (unix.Rlimit, error) { return unix.Rlimit{Cur: 1024, Max: 65536}, nil },
		uname: func() (u unix.Utsname, err error) {
			copy(u.Release[:], "5.14.0-427.el9.x86_64")
			return u, nil
		},
		lookPath: func(string) (string, error) { return "", errors.New("not found") },
		tryHuge:  func(string) error { return nil },
	}
	c := config.Default()
	c.Socket, c.Shm.Path, c.Lustre.Dir = filepath.Join(t.TempDir(), "new", "s"), "/dev/shm/none.arena", lustre
	return m, &c
}

func TestDoctor(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil   func(*machine, *config.Config)
		check   string
		verdict verdict
		want    []string // parts of detail and remedy
	}{
		"healthy": {check: "lustre", verdict: ok, want: []string{"on Lustre"}},
		"old kernel": {func(m *machine, _ *config.Config) {
			m.uname = func() (u unix.Utsname, err error) { copy(u.Release[:], "3.10.0-1160"); return u, nil }
		}, "kernel", warn, []string{"3.10", "4.18"}},
		"shm too small": {func(_ *machine, c *config.Config) { c.Shm.Bytes = 9 * units.GiB }, "shared memory", fail, []string{"8.00 GiB in all", "--shm-bytes", "remount"}},
		"shm too full":  {func(_ *machine, c *config.Config) { c.Shm.Bytes = 5 * units.GiB }, "shared memory", fail, []string{"4.00 GiB free", "ls -l"}},
		"shm on a disk": {func(m *machine, _ *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) {
				return unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096, Blocks: 1 << 30, Bavail: 1 << 30}, nil
			}
		}, "shared memory", warn, []string{"ext4", "/dev/shm"}},
		"no shm": {func(m *machine, _ *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, "shared memory", fail, []string{"no such file"}},
		"small pages": {func(m *machine, _ *config.Config) {
			m.tryHuge = func(dir string) error { return fmt.Errorf("%s: %w", dir, arena.ErrNoHugePages) }
		}, "huge pages", warn, []string{"/dev/shm", "6.1", "huge=advise"}},
		"shm is not writable": {func(m *machine, _ *config.Config) {
			m.tryHuge = func(string) error { return unix.EACCES }
		}, "huge pages", warn, []string{"permission denied"}},
		"job limit": {func(_ *machine, c *config.Config) { c.Shm.Bytes = 16 * units.GiB }, "memory", fail, []string{"/system.slice/job_1", "16.0 GiB", "sbatch --mem"}},
		"memory enough": {func(_ *machine, c *config.Config) { c.Shm.Bytes, c.Host.Bytes = 4*units.GiB, 11*units.GiB },
			"memory", ok, []string{"30.5 GiB available"}},
		"files": {func(m *machine, c *config.Config) { c.MaxConnections = 70000 }, "open files", warn, []string{"65536", "107176"}},
		"pinning": {func(m *machine, _ *config.Config) {
			plant(t, m.root, map[string]string{"dev/nvidia0": ""})
		}, "locked memory", warn, []string{"unlimited"}},
		"long socket":   {func(_ *machine, c *config.Config) { c.Socket = "/" + strings.Repeat("x", 107) }, "socket", fail, []string{"108 bytes"}},
		"no lustre":     {func(_ *machine, c *config.Config) { c.Lustre.Dir = "" }, "lustre", warn, []string{"--lustre-dir"}},
		"full lustre":   {func(_ *machine, c *config.Config) { c.Lustre.SegmentBytes = 1 << 53 }, "lustre", fail, []string{"one segment"}},
		"nearly full":   {func(_ *machine, c *config.Config) { c.Lustre.SegmentBytes = 1 << 50 }, "lustre", warn, []string{"ten segments"}},
		"lustre is tmp": {func(_ *machine, c *config.Config) { c.Lustre.Dir, c.Lustre.SegmentBytes = os.TempDir(), units.MiB }, "lustre", warn, []string{"tmpfs"}},
		"lustre is gone": {func(m *machine, c *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, "lustre", fail, []string{"mkdir -p"}},
		"slurm": {func(m *machine, _ *config.Config) { m.env = []string{"SLURM_JOB_ID=77", "SLURM_NODEID=0"} }, "slurm", ok, []string{"job 77"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, c := healthy(t)
			if tc.spoil != nil {
				tc.spoil(&m, c)
			}
			found := false
			for _, got := range m.checks(c) {
				if got.Name != tc.check {
					continue
				}
				found = true
				text := got.Detail + " " + got.Remedy
				for _, part := range tc.want {
					if got.Verdict != tc.verdict || !strings.Contains(text, part) {
						t.Errorf("%+v; want %s and %q", got, tc.verdict, part)
					}
				}
				if got.Verdict == fail && got.Remedy == "" {
					t.Errorf("%+v has no remedy", got)
				}
			}
			if !found {
				t.Errorf("no check is named %q", tc.check)
			}
		})
	}
}

func TestHealthyNodeHasNoComplaints(t *testing.T) {
	m, c := healthy(t)
	for _, got := range m.checks(c) {
		if got.Verdict != ok {
			t.Errorf("%+v", got)
		}
	}
}

func TestSocketDirectoryOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if got := (machine{}).socketDir(filepath.Join(dir, "s")); got.Verdict != warn || !strings.Contains(got.Remedy, "chmod") {
		t.Errorf("%+v", got)
	}
}

func TestControlGroupsOfVersion1(t *testing.T) {
	root := t.TempDir()
	plant(t, root, map[string]string{
		"proc/self/cgroup": "12:cpuset:/\n5:memory:/slurm/uid_0/job_3\n",
		"sys/fs/cgroup/memory/slurm/uid_0/job_3/memory.limit_in_bytes": "1073741824\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":                   "9223372036854771712\n",
	})
	if limit, group := (machine{root: root}).cgroupLimit(); limit != 1<<30 || group != "/slurm/uid_0/job_3" {
		t.Errorf("limit %d of %q", limit, group)
	}
}

func TestDoctorVerb(t *testing.T) {
	f := &fakeRank{stats: `{"puts":5000,"corrupt":1,"namespaces":[{"name":"a","puts":5000}],"tiers":[{"name":"lustre","errors":4}]}`}
	socket := startRank(t, f)
	got := cascadeCommand("", nil, "doctor", "--json", "--socket", socket)
	var report struct {
		OK     bool    `json:"ok"`
		Checks []check `json:"checks"`
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	verdicts := map[string]verdict{}
	for _, c := range report.Checks {
		verdicts[c.Name] = c.Verdict
	}
	for name, want := range map[string]verdict{"rank": ok, "hits": warn, "losses": warn, "tier lustre": warn} {
		if verdicts[name] != want {
			t.Errorf("%s is %q, want %q", name, verdicts[name], want)
		}
	}
	if report.OK != (got.status == exitOK) {
		t.Errorf("ok is %v, exit status %d", report.OK, got.status)
	}
}

func TestShareOfBlocks(t *testing.T) {
	for in, want := range map[string]float64{"0.1": 0.1, "10%": 0.1, "1": 1, "0": 0, "-1": 0, "x": 0, "nan": 0, "inf": 0} {
		if got, err := parseShare(in); got != want || (err == nil) != (want > 0) {
			t.Errorf("parseShare(%q) = %v, %v", in, got, err)
		}
	}
}
