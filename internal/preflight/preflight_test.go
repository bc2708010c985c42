package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/testing/testneed"
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
func healthy(t *testing.T) (Machine, *config.Config) {
	t.Helper()
	root := t.TempDir()
	plant(t, root, map[string]string{
		"proc/meminfo":     "MemTotal:       64000000 kB\nMemAvailable:   32000000 kB\n",
		"proc/self/cgroup": "0::/system.slice/job_1/step_0\n",
		"sys/fs/cgroup/system.slice/job_1/memory.max":        "17179869184\n",
		"sys/fs/cgroup/system.slice/job_1/step_0/memory.max": "max\n",
	})
	lustre := t.TempDir()
	m := Machine{root: root,
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
		tryRing:  func() error { return nil },
		synced:   func() (bool, error) { return true, nil },
		run:      func(context.Context, string, ...string) (string, error) { return "", errors.New("not found") },
	}
	c := config.Default()
	c.Socket, c.Shm.Path, c.Lustre.Dir = filepath.Join(t.TempDir(), "new", "s"), "/dev/shm/none.arena", lustre
	return m, &c
}

// limited has lfs print a quota.
func limited(m *Machine, text string) {
	m.lookPath = func(string) (string, error) { return "/usr/bin/lfs", nil }
	m.run = func(context.Context, string, ...string) (string, error) { return text, nil }
}

// someRoom is of a disk with 4 GiB free.
func someRoom(string) (unix.Statfs_t, error) {
	return unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096, Blocks: 1 << 30, Bavail: 1 << 20}, nil
}

func TestAll(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil   func(*Machine, *config.Config)
		check   string
		verdict Verdict
		want    []string // parts of detail and remedy
	}{
		"healthy": {check: "lustre", verdict: OK, want: []string{"on Lustre"}},
		"old kernel": {func(m *Machine, _ *config.Config) {
			m.uname = func() (u unix.Utsname, err error) { copy(u.Release[:], "3.10.0-1160"); return u, nil }
		}, "kernel", Warn, []string{"3.10", "4.18"}},
		"shm too small": {func(_ *Machine, c *config.Config) { c.Shm.Bytes = 9 * units.GiB }, "shared memory", Fail, []string{"8.00 GiB in all", "--shm-bytes", "remount"}},
		"shm too full":  {func(_ *Machine, c *config.Config) { c.Shm.Bytes = 5 * units.GiB }, "shared memory", Fail, []string{"4.00 GiB free", "ls -l"}},
		"shm on a disk": {func(m *Machine, _ *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) {
				return unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096, Blocks: 1 << 30, Bavail: 1 << 30}, nil
			}
		}, "shared memory", Warn, []string{"ext4", "/dev/shm"}},
		"no shm": {func(m *Machine, _ *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, "shared memory", Fail, []string{"no such file"}},
		"small pages": {func(m *Machine, _ *config.Config) {
			m.tryHuge = func(dir string) error { return fmt.Errorf("%s: %w", dir, arena.ErrNoHugePages) }
		}, "huge pages", Warn, []string{"/dev/shm", "6.1", "huge=advise"}},
		"shm is not writable": {func(m *Machine, _ *config.Config) {
			m.tryHuge = func(string) error { return unix.EACCES }
		}, "huge pages", Warn, []string{"permission denied"}},
		"job limit": {func(_ *Machine, c *config.Config) { c.Shm.Bytes = 16 * units.GiB }, "memory", Fail, []string{"/system.slice/job_1", "16.0 GiB", "sbatch --mem"}},
		"memory enough": {func(_ *Machine, c *config.Config) { c.Shm.Bytes, c.Host.Bytes = 4*units.GiB, 11*units.GiB },
			"memory", OK, []string{"30.5 GiB available"}},
		"files": {func(m *Machine, c *config.Config) { c.MaxConnections = 70000 }, "open files", Warn, []string{"65536", "107176"}},
		"pinning": {func(m *Machine, _ *config.Config) {
			plant(t, m.root, map[string]string{"dev/nvidia0": ""})
		}, "locked memory", Warn, []string{"unlimited"}},
		"long socket":    {func(_ *Machine, c *config.Config) { c.Socket = "/" + strings.Repeat("x", 107) }, "socket", Fail, []string{"108 bytes"}},
		"no lustre":      {func(_ *Machine, c *config.Config) { c.Lustre.Dir = "" }, "lustre", Warn, []string{"--lustre-dir"}},
		"lustre is open": {func(_ *Machine, c *config.Config) { _ = os.Chmod(c.Lustre.Dir, 0o777) }, "lustre", Warn, []string{"chmod o-w", "anybody can rename"}},
		"full lustre":    {func(_ *Machine, c *config.Config) { c.Lustre.SegmentBytes = 1 << 53 }, "lustre", Fail, []string{"one segment"}},
		"nearly full":    {func(_ *Machine, c *config.Config) { c.Lustre.SegmentBytes = 1 << 50 }, "lustre", Warn, []string{"ten segments"}},
		"lustre is tmp":  {func(_ *Machine, c *config.Config) { c.Lustre.Dir, c.Lustre.SegmentBytes = os.TempDir(), units.MiB }, "lustre", Warn, []string{"tmpfs"}},
		"lustre is gone": {func(m *Machine, c *config.Config) {
			c.Lustre.Dir = "/proc/none/kv"
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, "lustre", Fail, []string{"mkdir -p", "cannot make it"}},
		"lustre is new": {func(m *Machine, c *config.Config) {
			c.Lustre.Dir = filepath.Join(c.Lustre.Dir, "new", "kv")
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, "lustre", OK, []string{"the rank makes it"}},
		"no ring": {func(m *Machine, _ *config.Config) { m.tryRing = func() error { return unix.EPERM } }, "io_uring", Warn, []string{"not permitted", "io_uring_disabled", "threads"}},
		"no ring, no lustre": {func(m *Machine, c *config.Config) {
			m.tryRing, c.Lustre.Dir = func() error { return unix.EPERM }, ""
		}, "io_uring", OK, []string{"nothing needs it"}},
		"clock runs free": {func(m *Machine, _ *config.Config) { m.synced = func() (bool, error) { return false, nil } }, "clock", Warn, []string{"chronyd"}},
		"clock of one": {func(m *Machine, c *config.Config) {
			m.synced, c.Lustre.Dir = func() (bool, error) { return false, nil }, ""
		}, "clock", OK, []string{"does not mind"}},
		"nvme": {func(m *Machine, _ *config.Config) {
			plant(t, m.root, map[string]string{"sys/class/nvme/nvme0/model": "Fast Disk 3000  \n"})
		}, "nvme", OK, []string{"1 device(s): nvme0 Fast Disk 3000"}},
		"disks": {func(m *Machine, c *config.Config) {
			c.NVMe.Paths, c.NVMe.Bytes = []string{filepath.Join(t.TempDir(), "new")}, 4*units.GiB
			m.statfs = someRoom
		}, "nvme", OK, []string{"4GiB in /", "without a limit", "no device"}},
		"disks are spared": {func(m *Machine, c *config.Config) {
			c.NVMe.Paths, c.NVMe.Bytes, c.NVMe.MaxWrite = []string{filepath.Join(t.TempDir(), "new")}, 4*units.GiB, 200*units.MiB
			m.statfs = someRoom
		}, "nvme", OK, []string{"4GiB in /", "at most 200MiB a second"}},
		"disks too small": {func(m *Machine, c *config.Config) {
			c.NVMe.Paths, c.NVMe.Bytes = []string{t.TempDir()}, 5*units.GiB
			m.statfs = someRoom
		}, "nvme", Warn, []string{"room for 4.00 GiB", "nvme.bytes lower"}},
		"disks have no directories": {func(_ *Machine, c *config.Config) {
			c.NVMe.Paths, c.NVMe.Bytes = nil, units.TiB
		}, "nvme", Warn, []string{"1TiB", "nvme.paths"}},
		"disks are memory":  {func(_ *Machine, c *config.Config) { c.NVMe.Paths = []string{t.TempDir()} }, "nvme", Warn, []string{"tmpfs", "memory"}},
		"disks are lustre":  {func(_ *Machine, c *config.Config) { c.NVMe.Paths = []string{c.Lustre.Dir} }, "nvme", Warn, []string{"Lustre", "other nodes"}},
		"disks are missing": {func(_ *Machine, c *config.Config) { c.NVMe.Paths = []string{"/none/at/all"} }, "nvme", Fail, []string{"mkdir -p /none/at"}},
		"disks need buffers": {func(_ *Machine, c *config.Config) {
			c.Shm.Bytes, c.NVMe.Paths, c.NVMe.FileBytes = units.GiB, []string{t.TempDir()}, 128*units.MiB
		}, "memory", Fail, []string{"19.2 GiB"}},
		"slingshot without a network": {func(m *Machine, _ *config.Config) {
			plant(t, m.root, map[string]string{"sys/class/cxi/cxi0/x": "", "sys/class/cxi/cxi1/x": ""})
			m.env = []string{"SLURM_STEP_ID=0"}
		}, "slingshot", Warn, []string{"2 adapter(s)", "job_vni"}},
		"slingshot": {func(m *Machine, _ *config.Config) {
			plant(t, m.root, map[string]string{"sys/class/cxi/cxi0/x": ""})
			m.env = []string{"SLURM_STEP_ID=0", "SLINGSHOT_VNIS=4711"}
		}, "slingshot", OK, []string{"4711"}},
		"fabric": {func(_ *Machine, c *config.Config) {
			c.Peers.Fabric, c.Peers.Listen = "tcp", "127.0.0.1:0"
		}, "fabric address", Warn, []string{"127.0.0.1", "peers.listen"}},
		"fabric of another node": {func(_ *Machine, c *config.Config) {
			c.Peers.Fabric, c.Peers.Listen = "tcp", "192.0.2.1:0"
		}, "fabric address", Fail, []string{"192.0.2.1", "peers.listen"}},
		"quota": {func(m *Machine, _ *config.Config) { limited(m, " /mnt/l 4096 0 0 - 5 0 0 -\n") }, "quota", OK, []string{"4.00 MiB used without a limit, 5 files"}},
		"quota of files": {func(m *Machine, _ *config.Config) {
			limited(m, "/a/very/long/name\n   4096 0 0 - 5* 4 5 6d23h\n")
		}, "quota", Fail, []string{"5 files of 5", "lfs quota -u 0"}},
		"quota is used up": {func(m *Machine, _ *config.Config) { limited(m, " /mnt/l 4099* 4096 4100 none 5 0 0 -\n") }, "quota", Fail, []string{"of 4.00 MiB"}},
		"quota is nearly": {func(m *Machine, c *config.Config) {
			c.Lustre.SegmentBytes = units.MiB
			limited(m, " /mnt/l 0 0 4096 - 5 0 0 -\n")
		}, "quota", Warn, []string{"less than the tier may take"}},
		"quota below the budget": {func(m *Machine, c *config.Config) {
			c.Lustre.SegmentBytes, c.Lustre.Budget = units.MiB, units.GiB
			limited(m, " /mnt/l 0 0 409600 - 5 0 0 -\n")
		}, "quota", Warn, []string{"lustre.budget"}},
		"quota in other words": {func(m *Machine, _ *config.Config) { limited(m, "Permission denied.\n") }, "quota", OK, []string{"not known"}},
		"slurm":                {func(m *Machine, _ *config.Config) { m.env = []string{"SLURM_JOB_ID=77", "SLURM_NODEID=0"} }, "slurm", OK, []string{"job 77"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, c := healthy(t)
			if tc.spoil != nil {
				tc.spoil(&m, c)
			}
			found := false
			for _, got := range m.All(c) {
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
				if got.Verdict == Fail && got.Remedy == "" {
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
	for _, got := range m.All(c) {
		if got.Verdict != OK {
			t.Errorf("%+v", got)
		}
	}
}

func TestSocketDirectoryOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if got := (Machine{}).socketDir(filepath.Join(dir, "s")); got.Verdict != Warn || !strings.Contains(got.Remedy, "chmod") {
		t.Errorf("%+v", got)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if got := (Machine{}).socketDir(filepath.Join(dir, "s")); got.Verdict != Warn || !strings.Contains(got.Remedy, "a directory of your own") {
		t.Errorf("in a directory as /tmp is: %+v", got)
	}
	if got := (Machine{}).socketDir(filepath.Join(dir, "to-be-made", "s")); got.Verdict != OK {
		t.Errorf("in one that the rank makes there: %+v", got)
	}
}

func TestSocketDirectoryIsTheLinkOfAnotherUser(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "root", "run this test as root: it makes a link of another user")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(t.TempDir(), link), os.Lchown(link, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if got := (Machine{}).socketDir(filepath.Join(link, "s")); got.Verdict != Fail || !got.NoStart {
		t.Errorf("%+v", got)
	}
}

// TestOwnMount: a /dev/shm that job_container/tmpfs has made for the job is named. The lines are those of a real Slurm 22.05.
func TestOwnMount(t *testing.T) {
	const (
		node = "61 60 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24683656k\n"
		tmp  = "68 45 254:0 /var/slurm/n0/17/.17 /tmp rw,relatime - ext4 /dev/vda rw,discard\n"
		own  = "62 61 0:39 / /dev/shm rw,relatime - tmpfs tmpfs rw\n"
	)
	for name, c := range map[string]struct {
		mounts, job string
	}{
		"of the job": {node + tmp + own, "17"},
		"of a newer Slurm, which has a folder for each directory": {node + own + strings.Replace(tmp, "/.17", "/.17/_tmp", 1), "17"},
		"of the node":                         {node, ""},
		"of the node, with a /tmp of the job": {node + tmp, ""},
		"of a container":                      {node + own, ""},
		"of a home directory":                 {node + own + strings.Replace(tmp, "/.17", "/.18", 1), ""},
	} {
		m, config := healthy(t)
		plant(t, m.root, map[string]string{"proc/self/mountinfo": c.mounts})
		got := m.sharedMemory(config)
		if m.ownMount("/dev/shm") != c.job || got.Verdict != OK || strings.Contains(got.Detail, "of job 17 alone") != (c.job != "") {
			t.Errorf("%s: job %q, want %q: %s", name, m.ownMount("/dev/shm"), c.job, got.Detail)
		}
	}
}
