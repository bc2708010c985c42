package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/testing/testneed"
)

// nodeWith is a node with this limit of the job's control group, if there is one, and so much memory available.
func nodeWith(t *testing.T, limit, available int64) memlimit.Node {
	t.Helper()
	files := map[string]string{"proc/self/cgroup": "0::/job_17/step_batch\n", "proc/meminfo": "MemAvailable: " + strconv.FormatInt(available>>10, 10) + " kB\n"}
	if limit > 0 {
		files["sys/fs/cgroup/job_17/memory.max"] = strconv.FormatInt(limit, 10) + "\n"
	}
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return memlimit.Node{Root: root}
}

// tmpfs is the root of a tmpfs of so many bytes that only this process sees, as job_container/tmpfs gives one to a job.
func tmpfs(t *testing.T, size int64) string {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to make a tmpfs", "run this test as root")
	c, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(c)
	if err := errors.Join(unix.FsconfigSetString(c, "size", strconv.FormatInt(size, 10)), unix.FsconfigCreate(c)); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Fsmount(c, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(root) })
	return "/proc/self/fd/" + strconv.Itoa(root)
}

// TestSize: the arena has half of what the job may use, and leaves others room in a small /dev/shm; who sets shm.bytes has that, or is
// refused with the reason.
func TestSize(t *testing.T) {
	const gib = 1 << 30
	t.Chdir(t.TempDir())
	for name, c := range map[string]struct {
		limit, room int64 // 0: none
		env         []string
		bytes       string   // that ranks are given; "" none
		words       []string // of why, or of the error
		refused     bool
	}{
		"what Slurm gives":      {0, 0, []string{"SLURM_MEM_PER_NODE=196608"}, "96GiB", []string{"96.0 GiB", "half of the 192 GiB of memory that Slurm gives"}, false},
		"for each CPU":          {0, 0, []string{"SLURM_MEM_PER_CPU=1024", "SLURM_CPUS_ON_NODE=8"}, "4GiB", []string{"half of the 8.00 GiB"}, false},
		"its control group":     {6 * gib, 0, nil, "3GiB", []string{"half of the 6.00 GiB", "control group /job_17"}, false},
		"a lower control group": {6 * gib, 0, []string{"SLURM_MEM_PER_NODE=196608"}, "3GiB", []string{"control group"}, false},
		"a higher one":          {600 * gib, 0, []string{"SLURM_MEM_PER_NODE=2048"}, "1GiB", []string{"Slurm gives"}, false},
		"no limit":              {0, 0, nil, "40GiB", []string{"half of the 80.0 GiB", "available"}, false},
		"all of the node":       {0, 0, []string{"SLURM_MEM_PER_NODE=0"}, "40GiB", nil, false},
		"the tier above":        {0, 0, []string{"SLURM_MEM_PER_NODE=8192", "CASCADE_HOST_BYTES=1GiB"}, "3GiB", []string{"without host.bytes"}, false},
		"nothing is left":       {0, 0, []string{"SLURM_MEM_PER_NODE=100", "CASCADE_HOST_BYTES=1GiB"}, "4MiB", nil, false},
		"whole MiB":             {0, 0, []string{"SLURM_MEM_PER_NODE=1001"}, "500MiB", nil, false},
		"a small room":          {0, 2 * gib, []string{"SLURM_MEM_PER_NODE=8192"}, "1536MiB", []string{"three quarters of the 2.00 GiB of /proc/self/fd"}, false},
		"a large room":          {0, 64 * gib, []string{"SLURM_MEM_PER_NODE=8192"}, "4GiB", nil, false},
		"another component": {0, 0, []string{"SLURM_MEM_PER_NODE=8192", "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=17", "SLURM_JOB_NODELIST_HET_GROUP_0=n0", "SLURM_MEM_PER_NODE_HET_GROUP_0=8192",
			"SLURM_JOB_ID_HET_GROUP_1=18", "SLURM_JOB_NODELIST_HET_GROUP_1=n1", "SLURM_MEM_PER_NODE_HET_GROUP_1=4096"}, "2GiB", []string{"a component"}, false},
		"it is set":             {0, 0, []string{"SLURM_MEM_PER_NODE=8192", "CASCADE_SHM_BYTES=7GiB"}, "", nil, false},
		"more than the room":    {0, 2 * gib, []string{"SLURM_MEM_PER_NODE=8192", "CASCADE_SHM_BYTES=3GiB"}, "", []string{"shm.bytes", "CASCADE_SHM_BYTES", "more than all of the 2.00 GiB of /proc/self/fd", "leave it out for 1536MiB"}, true},
		"more than the job has": {0, 0, []string{"SLURM_MEM_PER_NODE=1024", "CASCADE_SHM_BYTES=3GiB"}, "", []string{"shm.bytes", "1.00 GiB of memory that Slurm gives", "leave it out for 512MiB", "--mem"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			env := inJob("CASCADE_PEERS_ADVERTISE=127.0.0.1", "CASCADE_SHM_PATH="+filepath.Join(t.TempDir(), "none", "a.arena"))
			if c.room > 0 {
				env = append(env, "CASCADE_SHM_PATH="+tmpfs(t, c.room)+"/a.arena")
			}
			p, err := prepare(t, Request{Env: append(env, c.env...), Node: nodeWith(t, c.limit, 80*gib)})
			if refused := errors.Is(err, config.ErrValue); refused != c.refused || !refused && err != nil {
				t.Fatal(err)
			}
			said := ""
			if c.refused {
				said = err.Error()
			} else {
				if said = p.Size; (said == "") != (c.bytes == "") {
					t.Errorf("it says %q", said)
				}
				if got := valueOf(p.Command, "--shm-bytes"); got != c.bytes || got != "" && p.Config.Shm.Bytes.String() != got {
					t.Errorf("ranks get %q, the plan has %s; want %q", got, p.Config.Shm.Bytes, c.bytes)
				}
			}
			for _, w := range c.words {
				if !strings.Contains(said, w) {
					t.Errorf("%q is not in %q", w, said)
				}
			}
		})
	}
}
