package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// shortShm starts a rank with an arena of 128 MiB in a file system of 160 MiB for
// which only the rank has a mount, and where others took so much of it once the
// file had its size. giveBack has them leave.
func shortShm(t *testing.T, others string, more ...string) (r *rank, giveBack func()) {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to make mount namespaces", "run this test as root")
	unshare := testneed.Program(t, "unshare", "apt-get install util-linux")
	out, err := exec.Command(unshare, "--mount", "true").CombinedOutput()
	testneed.That(t, err == nil, "the right to make mount namespaces", "run this test where "+strings.TrimSpace(string(out))+" does not happen")

	p := newPlace(t, "128MiB").withLustre()
	dir := filepath.Join(p.dir, "shm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.arena = filepath.Join(dir, "arena")
	const script = `set -e
mount -t tmpfs -o size=160m tmpfs "$1"
head -c "$2" /dev/zero >"$1/others"
umask 077
truncate -s 128M "$1/arena"
shift 2
exec "$@"`
	r = startWithin(t, []string{unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir, others}, p, more...)
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
	r, giveBack := shortShm(t, "80M")
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
	if sum := shm.Capacity + shm.Missing; shm.Capacity < 72<<20 || shm.Capacity > 78<<20 || sum > 128<<20 || sum < 127<<20 || shm.Used > shm.Capacity {
		t.Errorf("shm: %+v, want all but some MiB of what others left", shm)
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

// TestShmIsTaken: others take all of /dev/shm while the arena is being reserved.
// A put is refused at once with what to do, however long it may wait for room,
// and puts are served once there is room.
func TestShmIsTaken(t *testing.T) {
	r, giveBack := shortShm(t, "157M", "--deadline-room", "1h")
	r.untilSays(t, "shm is smaller than configured", "ready=0", "free space there, or lower shm.bytes")
	c := r.dial(t)
	err := c.Set("k", content("k", 1, 1<<20))
	if err == nil {
		t.Fatal("a put without any room is served")
	}
	wantWords(t, err.Error(), "OOM", "0 of ", "free space there, or lower shm.bytes")
	giveBack()
	r.untilSays(t, "shm has grown")
	if err := c.Set("k", content("k", 1, 1<<20)); err != nil {
		t.Error(err)
	}
}

// TestStartBesideOthers: /dev/shm has less room at the start than shm.bytes. The
// rank starts with what there is, and says so.
func TestStartBesideOthers(t *testing.T) {
	p := newPlace(t, "128MiB")
	testneed.That(t, os.Geteuid() == 0, "the right to make mount namespaces", "run this test as root")
	unshare := testneed.Program(t, "unshare", "apt-get install util-linux")
	dir := filepath.Join(p.dir, "shm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.arena = filepath.Join(dir, "arena")
	const script = `set -e
mount -t tmpfs -o size=64m tmpfs "$1"
shift
exec "$@"`
	r := startWithin(t, []string{unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir}, p)
	r.untilSays(t, "64.0 MiB in all", "at most 64MiB", "shm is smaller than configured")
	if shm := r.stats(t).Tiers[0].Usage; shm.Capacity < 48<<20 || shm.Missing < 60<<20 {
		t.Errorf("shm: %+v", shm)
	}
	if err := r.dial(t).Set("k", content("k", 1, 1<<20)); err != nil {
		t.Error(err)
	}
}
