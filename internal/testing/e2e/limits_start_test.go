package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/testneed"
)

// controlGroup makes a control group with a memory limit, and one below it that
// has none, and returns the command that runs another one in the latter.
func controlGroup(t *testing.T, limit int64) []string {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to make control groups", "run this test as root")
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root, file = root+"/memory", "memory.limit_in_bytes"
	}
	dir := filepath.Join(root, "cascade-e2e-"+strconv.Itoa(os.Getpid()))
	below := filepath.Join(dir, "step")
	err := os.Mkdir(dir, 0o755)
	t.Cleanup(func() {
		for _, d := range []string{below, dir} {
			for end := time.Now().Add(patience); errors.Is(syscall.Rmdir(d), syscall.EBUSY) && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond) // what ended in it is not gone yet
			}
		}
	})
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o600), os.Mkdir(below, 0o755))
	}
	testneed.That(t, err == nil, fmt.Sprintf("a control group with a memory limit (%v)", err), "run this test where "+root+" can be written and has the controller memory")
	return []string{"sh", "-c", `echo $$ >"$1/cgroup.procs" && shift && exec "$@"`, "sh", below}
}

// TestLimitBelowShm: the job's memory limit is below shm.bytes. The rank lives,
// serves from what it can have, and says so.
func TestLimitBelowShm(t *testing.T) {
	const blocks, size = 400, 1 << 20
	p := newPlace(t, "512MiB").withLustre()
	r := startWithin(t, controlGroup(t, 200<<20), p)
	r.untilSays(t, "limit of control group", "is 200 MiB", "--shm-bytes", "sbatch --mem", "shm is smaller than configured")
	c, value := r.dial(t), make([]byte, size)
	for i := range blocks {
		if err := c.Set(fmt.Sprint(i), bytesOf(fmt.Sprint(i), size)); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	for i := range blocks {
		if n, err := c.Get(fmt.Sprint(i), value); err != nil || string(value[:n]) != string(bytesOf(fmt.Sprint(i), size)) {
			t.Fatalf("%d: %d bytes, %v", i, n, err)
		}
	}
	if shm := r.stats(t).Tiers[0].Usage; shm.Capacity < 64<<20 || shm.Capacity > 200<<20 {
		t.Errorf("shm: %+v", shm)
	}
	_, _, said := finish(t, program("cascade"), "status", "--socket", r.socket)
	wantWords(t, said, "less than configured", "control group", "sbatch --mem")
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
}

// TestReadsUnderALimit: the memory for blocks of other ranks, which is used late, finds room
// under the job's limit although the arena has grown as far as it could.
func TestReadsUnderALimit(t *testing.T) {
	const blocks, size, callers = 48, 4 << 20, 16
	within := controlGroup(t, 192<<20) // first, so that it outlives the rank in it
	j := newJob(t, "512MiB", false)
	j.add(0)
	j.within = within
	j.add(1)
	j.agree(2)
	key := func(i int) string { return fmt.Sprint("far ", i) }
	far, near := j.ranks[0].dial(t), j.ranks[1].dial(t)
	for i := range blocks {
		if err := errors.Join(far.Set(key(i), bytesOf(key(i), size)), near.Set(fmt.Sprint(i), bytesOf(fmt.Sprint(i), size))); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	var all sync.WaitGroup
	for c := range callers {
		client := j.ranks[1].dial(t)
		all.Go(func() {
			value := make([]byte, size)
			for i := range 10 {
				k := key((i*7 + c*3) % blocks)
				if n, err := client.Get(k, value); err != nil || string(value[:n]) != string(bytesOf(k, size)) {
					t.Errorf("%s: %d bytes, %v", k, n, err)
					return
				}
			}
		})
	}
	all.Wait()
	for _, r := range j.ranks {
		r.signal(t, syscall.SIGTERM)
		wantStatus(t, r.status(t), 0, r.stderr)
	}
}

// TestLimitThatNoRankLivesWith: the start is refused with the reason.
func TestLimitThatNoRankLivesWith(t *testing.T) {
	p := newPlace(t, "64MiB")
	r := launchWithin(t, controlGroup(t, 48<<20), p)
	wantStatus(t, r.status(t), 1, r.stderr)
	wantWords(t, r.stderr.String(), "cannot start", "limit of control group", "48.0 MiB", "sbatch --mem")
	if _, err := os.Stat(p.arena); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the arena of a rank that did not start: %v", err)
	}
}

// TestSocketDirectoryIsRefusedFirst: a start that must fail for its socket takes
// no memory.
func TestSocketDirectoryIsRefusedFirst(t *testing.T) {
	p := newPlace(t, "64MiB")
	p.socket = filepath.Join(p.dir, "file", "rank.sock")
	if err := os.WriteFile(filepath.Dir(p.socket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := launch(t, p)
	wantStatus(t, r.status(t), 1, r.stderr)
	wantWords(t, r.stderr.String(), "cannot start", "socket", "not a directory")
	if _, err := os.Stat(p.arena); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the arena of a rank that did not start: %v", err)
	}
}

// TestStrangeVariables: variables that a batch system or Kubernetes sets keep no
// rank from starting.
func TestStrangeVariables(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	p.lustre = "$KV_SCRATCH/kv"
	within := []string{"env", "CASCADE_SERVICE_HOST=10.0.0.1", "CASCADE_PORT=tcp://10.0.0.1:6380", "CASCADE_ROOT=/opt", "KV_SCRATCH=" + p.dir}
	r := startWithin(t, within, p)
	r.untilSays(t, "level=WARN", "CASCADE_PORT, CASCADE_ROOT, CASCADE_SERVICE_HOST")
	if _, err := os.Stat(filepath.Join(p.dir, "kv")); err != nil {
		t.Errorf("lustre.dir with a variable: %v", err)
	}
	if strings.Contains(r.stderr.String(), "level=ERROR") {
		t.Errorf("the log:\n%s", r.stderr)
	}
}
