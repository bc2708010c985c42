package lustretest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/guest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// filled is what the program fill came to.
type filled struct {
	Stored int    `json:"stored"` // blocks of fillBytes that were acknowledged, from number 0 on
	Error  string `json:"error"`  // of the put that was refused
	Quota  bool   `json:"quota"`  // it says that the quota is exceeded
	Full   bool   `json:"full"`   // it says that there is no room, if only by statfs
	Direct bool   `json:"direct"`
}

const (
	fillBytes = 1 << 20
	fillCount = 40
)

// runFill puts blocks until one is refused, as the user who runs it.
func runFill(args []string) error {
	f := flag.NewFlagSet("fill", flag.ContinueOnError)
	dir := f.String("dir", "", "directory of segments")
	direct := f.Bool("direct", false, "past the page cache")
	if err := f.Parse(args); err != nil {
		return err
	}
	o := segment.Options{Dir: *dir, Incarnation: 1, SegmentBytes: 64 << 20, Direct: segment.Off}
	if *direct {
		o.Direct = segment.On
	}
	s, err := segment.Open(o)
	if err != nil {
		return err
	}
	sum := filled{Direct: s.Access().Direct}
	for n := range fillCount {
		if err := s.Put(context.Background(), realItem(uint64(n), fillBytes)); err != nil {
			sum.Error, sum.Quota, sum.Full = err.Error(), errors.Is(err, vfs.ErrQuota), errors.Is(err, tiers.ErrFull)
			break
		}
		sum.Stored++
	}
	_ = s.Close() // it may want to write more
	return json.NewEncoder(os.Stdout).Encode(sum)
}

// fillAs runs the program fill in the guest, as a user.
func fillAs(t *testing.T, uid uint32, dir string, direct bool) (sum filled) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-dir", dir, fmt.Sprint("-direct=", direct))
	c.Env = append(os.Environ(), programVariable+"=fill")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := c.CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &sum)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return sum
}

// TestRealQuota: who has used up a quota of space, of the user or of the
// project, is told so by a put, and all that was acknowledged by then is on the
// servers, though writes through the page cache pass the limit by far before
// anybody says so. Root is not held by it, but by the marks: statfs shows what is
// left of a project's quota.
func TestRealQuota(t *testing.T) {
	const limit = 16 << 20
	for i, c := range []struct {
		name   string
		user   uint32 // another one in each case, and so the project: space comes back late
		of     string // what has the quota
		direct bool
		held   bool
	}{
		{"user, through the page cache", 1001, "u", false, true},
		{"user, past the page cache", 1002, "u", true, true},
		{"project, past the page cache", 1003, "p", true, true},
		{"project, root", 0, "p", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, project := onLustre(t), 77+i
			who := fmt.Sprintf("-%s %d", c.of, map[string]int{"u": int(c.user), "p": project}[c.of])
			shell(t, "lfs project -s -p %d %s", project, dir)
			shell(t, "lfs setquota %s -b 0 -B %dk -i 0 -I 0 /mnt/lustre", who, limit>>10)
			defer shell(t, "lfs setquota %s -b 0 -B 0 -i 0 -I 0 /mnt/lustre", who)
			sum := fillAs(t, c.user, filepath.Join(dir, "d"), c.direct)
			if stopped := sum.Stored < fillCount; sum.Quota != c.held || sum.Full != stopped || c.held && !stopped || sum.Direct != c.direct {
				t.Errorf("%+v", sum)
			}
			space, err := vfs.OS{}.Statfs(dir)
			t.Logf("%d MiB acknowledged of a quota of %d MiB, then %q; statfs of the folder: %d MiB, %v", sum.Stored, limit>>20, sum.Error, space.Total>>20, err)
			if err != nil || c.of == "p" && space.Total != limit {
				t.Errorf("statfs does not tell the project's quota: %+v, %v", space, err)
			}
			shell(t, "chown -R 0 %s", dir) // root reads no segment of another user
			forgetCaches(t)
			s := openSegments(t, segment.Options{Dir: filepath.Join(dir, "d"), Rank: 9, Incarnation: 2})
			var items []tiers.Item
			for n := range sum.Stored {
				items = append(items, realItem(uint64(n), fillBytes))
			}
			wantBlocks(t, "acknowledged", s, items...)
			shell(t, "rm -rf %s", dir)
		})
	}
}

// TestRealDoctor: cascade doctor sees a user's quota as it gets short, and the stripes that are granted.
func TestRealDoctor(t *testing.T) {
	const user = 1004
	dir := onLustre(t)
	doctor := func(quota string) string {
		t.Helper()
		shell(t, "lfs setquota -u %d -b 0 -B %s -i 0 -I 0 /mnt/lustre", user, quota)
		c := exec.Command(filepath.Join(os.Getenv("CASCADE_E2E_BIN"), "cascade"), "doctor")
		c.Env = append(os.Environ(), "CASCADE_LUSTRE_DIR="+dir, "CASCADE_LUSTRE_STRIPE_COUNT=1", "CASCADE_LUSTRE_SEGMENT_BYTES=64MiB")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, _ := c.CombinedOutput() // a guest fails some check
		return string(out)
	}
	defer shell(t, "lfs setquota -u %d -b 0 -B 0 -i 0 -I 0 /mnt/lustre", user)
	for quota, want := range map[string]string{"10G": "ok    quota           ", "256M": "warn  quota           ", "16M": "fail  quota           "} {
		text := doctor(quota)
		if !strings.Contains(text, want) || !strings.Contains(text, "granted as asked for: -c 1") {
			t.Errorf("with a quota of %s it does not say %q and what is granted:\n%s", quota, want, text)
		}
	}
}

// spaceBack waits until the servers have freed what was removed before: they do
// so some time after the names are gone.
func spaceBack(t *testing.T) {
	t.Helper()
	shell(t, `for i in $(seq 600); do
		for ost in $(lctl list_param osd-*.*OST*); do
			echo $(lctl get_param -n $ost.kbytesavail $ost.kbytestotal)
		done | awk '$1 < $2 * 3 / 4 { full = 1 } END { exit full }' && exit 0
		usleep 100000
	done; lfs df /mnt/lustre; exit 1`)
	statfsShows(t, 3.0/4)
}

// statfsShows waits until statfs, which clients and servers answer from what
// they were told some seconds ago, has a part of all space free.
func statfsShows(t *testing.T, part float64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		space, err := vfs.OS{}.Statfs("/mnt/lustre")
		if err == nil && float64(space.Free) >= part*float64(space.Total) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute on, statfs shows too little room: %+v, %v", space, err)
		}
	}
}

// TestRealTwoStripes: with one OST full, files of two stripes cannot be written
// while statfs shows room. A store says so and is read-only, serves what it has,
// and goes on when there is space.
func TestRealTwoStripes(t *testing.T) {
	dir := onLustre(t)
	spaceBack(t)
	shell(t, "lfs setstripe -c 2 -S 64k %s", dir)
	s := openSegments(t, segment.Options{Dir: dir, Incarnation: 1, SegmentBytes: 4 << 20, RetryFull: 100 * time.Millisecond})
	stored := []tiers.Item{realItem(500, fillBytes)}
	putBlocks(t, s, stored...)
	shell(t, "%s", fill("0"))
	defer shell(t, "rm -f /mnt/lustre/fill*")
	statfsShows(t, 1.0/4)
	var err error
	for n := uint64(501); err == nil && n < 700; n++ {
		it := realItem(n, fillBytes)
		if err = s.Put(t.Context(), it); err == nil {
			stored = append(stored, it)
		}
	}
	space, statErr := vfs.OS{}.Statfs(dir)
	t.Logf("%d MiB went in after one OST was full; then %v; statfs: %d of %d MiB free, %v", len(stored)-1, err, space.Free>>20, space.Total>>20, statErr)
	if !errors.Is(err, vfs.ErrNoSpace) || !s.ReadOnly() {
		t.Errorf("Put: %v, read-only: %v", err, s.ReadOnly())
	}
	if space.Free < space.Total/4 {
		t.Errorf("statfs shows no room: %+v", space)
	}
	forgetCaches(t)
	wantBlocks(t, "while full", s, stored...)
	shell(t, "rm -f /mnt/lustre/fill*")
	it := realItem(900, fillBytes)
	for n := 0; ; n++ {
		if err = s.Put(t.Context(), it); err == nil {
			break
		}
		if n == 600 {
			t.Fatalf("no put a minute after space came back: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	forgetCaches(t)
	wantBlocks(t, "with space again", s, append(stored, it)...)
}

// then runs tests in a guest when another test is through with it.
func then(t *testing.T, m *guest.Machine, run string) {
	t.Helper()
	t.Run(run, func(t *testing.T) { inGuest(t, m, "^"+run+"$") })
}
