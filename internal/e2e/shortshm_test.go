package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/need"
)

// shortShm starts a rank with an arena of 128 MiB in a file system for which
// only the rank has a mount, and where others took all but 80 MiB once the file
// had its size. giveBack has them leave.
func shortShm(t *testing.T) (r *rank, giveBack func()) {
	t.Helper()
	need.That(t, os.Geteuid() == 0, "the right to make mount namespaces", "run this test as root")
	unshare := need.Program(t, "unshare", "apt-get install util-linux")
	out, err := exec.Command(unshare, "--mount", "true").CombinedOutput()
	need.That(t, err == nil, "the right to make mount namespaces", "run this test where "+strings.TrimSpace(string(out))+" does not happen")

	p := newPlace(t, "128MiB").withLustre()
	dir := filepath.Join(p.dir, "shm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.arena = filepath.Join(dir, "arena")
	const script = `set -e
mount -t tmpfs -o size=160m tmpfs "$1"
head -c 80M /dev/zero >"$1/others"
umask 077
truncate -s 128M "$1/arena"
shift
exec "$@"`
	r = startWithin(t, []string{unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir}, p)
	return r, func() {
		inside := filepath.Join("/proc", strconv.Itoa(r.cmd.Process.Pid), "root", dir, "others")
		if err := os.Remove(inside); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShmFillsUpWhileGrowing: others take the rest of /dev/shm while the arena
// is being reserved. The rank lives, takes every put, and says what to do; and
// uses the room once it is there.
func TestShmFillsUpWhileGrowing(t *testing.T) {
	r, giveBack := shortShm(t)
	r.untilSays(t, "shm is smaller than configured", "shm.bytes", "free space", r.arena)
	c := r.dial(t)
	const most = 1 << 20
	put := func(from, to int) {
		for i := from; i < to; i++ {
			if err := c.Set(fmt.Sprint("k", i), content(fmt.Sprint("k", i), 1, most)); err != nil {
				t.Fatalf("put %d: %v", i, err)
			}
		}
	}
	wrong := func(upTo int) {
		room := make([]byte, most+64)
		for i := range upTo {
			key := fmt.Sprint("k", i)
			if n, err := c.Get(key, room); err != nil || string(room[:n]) != string(content(key, 1, most)) {
				t.Errorf("%s: %d bytes, %v", key, n, err)
			}
		}
	}
	put(0, 400) // more than is ready, and than is configured
	wrong(400)
	shm := r.stats(t).Tiers[0].Usage
	if sum := shm.Capacity + shm.Missing; shm.Capacity != 64<<20 || sum > 128<<20 || sum < 127<<20 || shm.Used > shm.Capacity {
		t.Errorf("shm: %+v, want half of 128 MiB missing", shm)
	}
	_, _, said := finish(t, program("cascade"), "status", "--socket", r.socket)
	wantWords(t, said, "shm", "less than configured", "free space", "shm.bytes")

	giveBack()
	r.untilSays(t, "shm has grown")
	put(400, 500)
	wrong(500)
	if now := r.stats(t).Tiers[0].Usage; now.Missing != 0 || now.Capacity != shm.Capacity+shm.Missing {
		t.Errorf("shm: %+v after it grew, %+v before", now, shm)
	}
	if _, _, said := finish(t, program("cascade"), "status", "--socket", r.socket); said != "" {
		t.Errorf("status still says %q", said)
	}
}
