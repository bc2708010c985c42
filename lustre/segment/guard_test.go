package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

const (
	stranger  = 65534
	campaigns = 54321 // a group
)

func needRoot(t *testing.T) {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the privilege to give files to another user", "run the tests as root, in a container for instance")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inTime fails a test whose fn waits for ever, as an open of a pipe does.
func inTime(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for ever")
	}
}

// TestStrangersSegments: what another user, or anybody, may have put into the
// directory, or what is no file at all, is not read: not by a start, not by an
// adoption, a catalogue or a read by place. What is this user's own next to it is.
func TestStrangersSegments(t *testing.T) {
	needRoot(t)
	const file, dir = 0, 1
	for name, c := range map[string]struct {
		what   int // at what the change is made
		change func(t *testing.T, path string)
		count  int
	}{
		"file":           {file, func(t *testing.T, path string) { must(t, os.Chown(path, stranger, stranger)) }, 1},
		"directory":      {dir, func(t *testing.T, path string) { must(t, os.Chown(path, stranger, stranger)) }, 1},
		"writable":       {file, func(t *testing.T, path string) { must(t, os.Chmod(path, 0o602)) }, 1},
		"group-writable": {file, func(t *testing.T, path string) { must(t, os.Chmod(path, 0o660)) }, 1},
		"open directory": {dir, func(t *testing.T, path string) { must(t, os.Chmod(path, 0o777)) }, 1},
		"pipe": {file, func(t *testing.T, path string) {
			must(t, errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)))
		}, 1},
		"directory for a file": {file, func(t *testing.T, path string) {
			must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
		}, 1},
		"link to a file": {file, func(t *testing.T, path string) {
			to := filepath.Join(t.TempDir(), "elsewhere")
			must(t, errors.Join(os.Rename(path, to), os.Symlink(to, path)))
		}, 1},
		"link to a directory": {dir, func(t *testing.T, path string) {
			to := filepath.Join(t.TempDir(), "elsewhere")
			must(t, errors.Join(os.Rename(path, to), os.Symlink(to, path)))
		}, 1},
		"hard link of a stranger's": {file, func(t *testing.T, path string) {
			to := filepath.Join(t.TempDir(), "elsewhere")
			must(t, errors.Join(os.Rename(path, to), os.Chown(to, stranger, stranger), os.Link(to, path)))
		}, 1},
	} {
		for _, catalogued := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/catalogued=%t", name, catalogued), func(t *testing.T) {
				inTime(t, func() { strangersSegments(t, c.what == dir, c.change, c.count, catalogued) })
			})
		}
	}
}

func strangersSegments(t *testing.T, dirs bool, change func(*testing.T, string), count int, catalogued bool) {
	dir := t.TempDir()
	mine, theirs, far := testItem(1, 9000, testName("mine", 1)), testItem(2, 9000, testName("theirs", 2)), testItem(3, 9000, testName("far", 3))
	s := openStore(t, testOptions(dir, 1))
	put(t, s, mine)
	closeStore(t, s)
	s = openStore(t, ownOptions(dir, 2))
	put(t, s, theirs)
	place, err := s.Segment(theirs.Info.ID)
	must(t, err)
	closeStore(t, s)
	o := testOptions(dir, 9)
	o.Rank = 4
	s = openStore(t, o)
	put(t, s, far)
	closeStore(t, s)
	for _, path := range []string{segmentPath(2, 0), filepath.Join("rank004-0000000000000009", "agg_rank004_000000.bin")} {
		if path = filepath.Join(dir, path); dirs {
			path = filepath.Dir(path)
		}
		change(t, path)
	}

	o = testOptions(dir, 11)
	o.OwnOnly, o.Catalogued = catalogued, catalogued
	s = openStore(t, o)
	wantBytes(t, s, mine)
	for key := range map[string]bool{"theirs": true, "far": true} {
		if id, found := s.names[key]; found {
			t.Errorf("%s is found: %v", key, id)
		}
	}
	dst := make([]byte, theirs.Info.Size)
	if err := s.ReadSegment(t.Context(), place, theirs.Info, dst); err == nil && !dirs {
		t.Error("it can be read by its place")
	}
	for _, one := range []tiers.Part{{Rank: 4, Incarnation: 9}, {Rank: 3, Incarnation: 2}} {
		l, err := s.Files(t.Context(), one)
		if dirs && err == nil {
			t.Errorf("%v is listed: %+v", one, l)
		}
		if _, err := s.Contents(t.Context(), one, 0, 0); err == nil && !dirs {
			t.Errorf("what is in %v is read", one)
		}
		must(t, s.Adopt(t.Context(), one, func(f tiers.Entry) error {
			return fmt.Errorf("%v was adopted: %+v", one, f)
		}))
	}
	if skipped := s.Skipped(); len(skipped) > 0 {
		t.Errorf("skipped one by one: %v", skipped)
	}
	refused := s.Refused()
	if refused.Files != 2*count || len(refused.First) != 2*count || !strings.HasPrefix(refused.First[0], "rank00") {
		t.Errorf("refused %+v, want %d", refused, 2*count)
	}
}

// ownOptions are testOptions of a run that begins a little later, so that what
// earlier ones left is taken over.
func ownOptions(dir string, incarnation uint64) Options {
	o := testOptions(dir, incarnation)
	o.OwnOnly = true
	return o
}

// TestGroupsSegments: what the campaign's group owns is read, unless anybody can
// make files that get this group; and what a store with a group makes the group
// may read, and not change.
func TestGroupsSegments(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	it := testItem(1, 9000, testName("k", 1))
	shared := func(incarnation uint64) Options {
		o := testOptions(dir, incarnation)
		o.Group = campaigns
		return o
	}
	s := openStore(t, shared(1))
	put(t, s, it)
	closeStore(t, s)
	file := filepath.Join(dir, segmentPath(1, 0))
	for path, want := range map[string]os.FileMode{file: 0o640, filepath.Dir(file): 0o750 | os.ModeDir} {
		info, err := os.Lstat(path)
		must(t, err)
		st, err := vfs.StatPath(path)
		must(t, err)
		if info.Mode() != want || st.GID != campaigns {
			t.Errorf("%s has mode %v and group %d, want %v and %d", path, info.Mode(), st.GID, want, campaigns)
		}
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		must(t, os.Lchown(path, stranger, campaigns))
	}
	look := func(incarnation uint64, o Options) bool {
		o.Rank = 8
		s := openStore(t, o)
		defer closeStore(t, s)
		return s.blocks[it.Info.ID] == it.Info
	}
	if !look(2, shared(2)) {
		t.Error("a file of the group is not read")
	}
	if look(3, testOptions(dir, 3)) {
		t.Error("it is read without the group in the options")
	}
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	if look(4, shared(4)) {
		t.Error("it is read although anybody could have put it there")
	}
}

// TestExposedDirectory: a directory in which anybody can rename and remove is
// reported; one with the sticky bit is not.
func TestExposedDirectory(t *testing.T) {
	for mode, want := range map[os.FileMode]bool{0o700: false, 0o775: false, 0o777: true, 0o777 | os.ModeSticky: false} {
		dir := t.TempDir()
		must(t, os.Chmod(dir, mode))
		s := openStore(t, testOptions(dir, 1))
		if got := s.Access().Exposed; got != want {
			t.Errorf("mode %v: exposed %v, want %v", mode, got, want)
		}
		closeStore(t, s)
	}
}

// TestRefusedAreCounted: a directory full of a stranger's files is one count, of
// which a few are named.
func TestRefusedAreCounted(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	const n = 300
	for i := range n {
		name := format.FileID{Rank: uint32(i), Incarnation: 77}.Dir()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must(t, os.Lchown(filepath.Join(dir, name), stranger, stranger))
	}
	s := openStore(t, testOptions(dir, 1))
	for range 2 {
		if r := s.Refused(); r.Files != n || len(r.First) != trust.Named || !strings.Contains(r.First[0], "user 65534") {
			t.Errorf("%+v", r)
		}
		if len(s.Skipped()) != 0 {
			t.Errorf("%d are listed one by one", len(s.Skipped()))
		}
		for i := range n {
			must(t, s.Adopt(t.Context(), tiers.Part{Rank: uint32(i), Incarnation: 77}, func(tiers.Entry) error { return nil }))
		}
	}
}
