package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/hangfs"
	"cascadekv/internal/testing/testneed"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leave has a rank write some keys and end, and takes its memory away.
func leave(t *testing.T, p place, keys map[string]string, more ...string) {
	t.Helper()
	r := start(t, p, more...)
	c := r.dial(t)
	for k, v := range keys {
		must(t, c.Set(k, []byte(v)))
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	if err := os.Remove(p.arena); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// segmentsOf lists the files of a kind below a directory of segments.
func segmentsOf(t *testing.T, dir, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "rank*", pattern))
	must(t, err)
	if len(all) == 0 {
		t.Fatalf("no %s below %s", pattern, dir)
	}
	return all
}

// TestStrangersInLustreDir: another user, and anybody by a pipe, puts something
// into a lustre.dir that all can write to. The rank keeps its own values, says in
// one line what it refused, starts at once, and ends when it is told to.
func TestStrangersInLustreDir(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the privilege to give files to another user", "run the tests as root, in a container for instance")
	p, evil := newPlace(t, "64MiB").withLustre(), newPlace(t, "64MiB").withLustre()
	leave(t, p, map[string]string{"k": "good"})
	leave(t, evil, map[string]string{"k": "evil", "new": "evil"}) // later, so that its record would win
	must(t, os.Chmod(p.lustre, 0o777))
	for _, path := range append(segmentsOf(t, evil.lustre, ""), segmentsOf(t, evil.lustre, "*")...) {
		must(t, os.Chown(path, nobody, nobody))
	}
	for _, dir := range segmentsOf(t, evil.lustre, "") {
		must(t, os.Rename(dir, filepath.Join(p.lustre, filepath.Base(dir))))
	}
	own := segmentsOf(t, p.lustre, "agg_rank000_*.bin")
	pipe := filepath.Join(filepath.Dir(own[0]), "agg_rank000_000900.bin")
	for _, path := range own { // in a directory of the rank's own
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if st.Uid == 0 {
			pipe = filepath.Join(filepath.Dir(path), "agg_rank000_000900.bin")
		}
	}
	must(t, unix.Mkfifo(pipe, 0o600))

	for _, index := range []string{filepath.Join(p.dir, "index"), "off"} {
		r := start(t, p, "--lustre-index", index)
		c := r.dial(t)
		wantValue(t, c, "k", "good")
		if _, err := c.Get("new", make([]byte, 16)); !errors.Is(err, resp.ErrNull) {
			t.Errorf("the other user's key: %v", err)
		}
		r.untilSays(t, "anybody can rename and remove", "refused=2")
		if n := strings.Count(r.stderr.String(), "are refused"); n != 1 {
			t.Errorf("%d lines say that something was refused", n)
		}
		r.signal(t, syscall.SIGTERM)
		wantStatus(t, r.status(t), 0, r.stderr)
		p.wantNoArena(t)
	}
	for _, verb := range [][]string{{"segments"}, {"fsck"}, {"lustre", "show"}} {
		_, out, _ := finish(t, program("cascade"), append(verb, p.lustre)...)
		if !strings.Contains(out, fmt.Sprintf("user %d", nobody)) {
			t.Errorf("%v does not name it:\n%s", verb, out)
		}
	}
}

// TestHungSegment: a server of the file system does not answer for a segment. The
// rank listens all the same and serves what lies elsewhere; it ends when it is
// told to; and it takes the segment in when it answers.
func TestHungSegment(t *testing.T) {
	long(t)
	p := newPlace(t, "64MiB").withLustre()
	keys := map[string]string{"late": strings.Repeat("l", 300<<10)}
	leave(t, p, keys)
	path := segmentsOf(t, p.lustre, "agg_rank000_*.bin")[0]
	leave(t, p, map[string]string{"there": "now"})
	keys["there"] = "now"
	content, err := os.ReadFile(path)
	must(t, err)
	mount := t.TempDir()
	server, err := hangfs.Mount(mount, map[string][]byte{"segment": content})
	testneed.That(t, !errors.Is(err, hangfs.ErrUnsupported), "a file system in user space", "run the tests as root, with /dev/fuse")
	must(t, err)
	defer server.Close()
	must(t, unix.Mount(filepath.Join(mount, "segment"), path, "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(path, unix.MNT_DETACH) }() // it goes with the directory

	// A hang lasts for ten seconds, in which a busy machine may not get there. A
	// process with a read that hangs can not go before that ends, in this kernel.
	stopped, listened := false, false
	for range 5 {
		server.Hang()
		must(t, os.RemoveAll(filepath.Join(p.dir, "index"))) // or the segment would not be read
		r := launch(t, p)
		until(t, "a read that hangs", func() bool { return server.Waiting() > 0 })
		r.signal(t, syscall.SIGTERM)
		r.untilSays(t, "cascaded ends")
		stopped = server.Waiting() > 0
		server.Answer()
		wantStatus(t, r.status(t), 0, r.stderr)
		if stopped {
			break
		}
	}
	if !stopped {
		t.Error("SIGTERM was not obeyed before the segment answered")
	}
	for range 5 {
		if err := os.Remove(p.arena); err != nil && !errors.Is(err, os.ErrNotExist) { // of a start that was called off there is none
			t.Fatal(err)
		}
		server.Hang()
		must(t, os.RemoveAll(filepath.Join(p.dir, "index")))
		r := start(t, p)
		c := r.dial(t)
		wantValue(t, c, "there", "now")
		_, err := c.Get("late", make([]byte, len(keys["late"])))
		listened = server.Waiting() > 0 && errors.Is(err, resp.ErrNull)
		server.Answer()
		if listened {
			r.untilSays(t, "do not answer", "have answered")
			wantValue(t, c, "late", keys["late"])
		}
		r.signal(t, syscall.SIGTERM)
		wantStatus(t, r.status(t), 0, r.stderr)
		if listened {
			break
		}
	}
	if !listened {
		t.Error("the rank did not listen before the segment answered")
	}
}
