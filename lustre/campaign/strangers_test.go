package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/testing/testneed"
	"cascadekv/lustre/segment"
)

const stranger, group = 65534, 54321

func needRoot(t *testing.T) {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the privilege to give files to another user", "run the tests as root, in a container for instance")
}

// give makes a campaign's directory tree, but not the directory, somebody else's.
func give(t *testing.T, dir string, uid, gid int) {
	t.Helper()
	inside, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(inside) == 0 {
		t.Fatal(inside, err)
	}
	deeper, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(inside, deeper...) {
		if err := os.Lchown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStrangers: what belongs to somebody else is named by fsck and segments, and
// neither listed among the segments, nor exported, nor repaired into a segment of
// this user's.
func TestStrangers(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	theirs := newData()
	r := startRank(t, dir, 7, 0x7000, theirs)
	r.put(1, 5000, "x", 1)
	r.close()
	flip(t, filepath.Join(dir, files(t, dir, "*.bin")[0]), 100) // damage, which invites a repair
	give(t, dir, stranger, stranger)
	d := fill(t, dir)

	l, err := List(t.Context(), options(dir), -1)
	if err != nil {
		t.Fatal(err)
	}
	if l.Refused.Count != 1 || !strings.Contains(l.Refused.First[0], "rank007-0000000000007000: ") || l.Totals.Ranks != 2 || l.Totals.Distinct != len(d.blocks) {
		t.Errorf("refused %+v, totals %+v", l.Refused, l.Totals)
	}
	report := check(t, options(dir), CheckOptions{Payloads: true})
	if p := problems(report); len(p) != 1 || p[0].Kind != KindOwner || !strings.Contains(p[0].What, fmt.Sprint(stranger)) {
		t.Errorf("problems: %+v", p)
	}
	if err := Repair(t.Context(), report, RepairOptions{Force: true, Delete: true}); err != nil || len(report.Repairs) != 0 || report.Left != 1 {
		t.Errorf("repair: %v, %+v", err, report)
	}
	if _, x := export(t, options(dir), ExportOptions{}); x.Blocks != len(d.blocks) {
		t.Errorf("exported %d blocks of %d", x.Blocks, len(d.blocks))
	}
	wantAll(t, "after the repair", d, recoverAll(t, dir))

	for i := range 2 * namedStrangers {
		name := segment.FileID{Rank: uint32(i), Incarnation: 5}.Dir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(dir, name), stranger, stranger); err != nil {
			t.Fatal(err)
		}
	}
	if p := problems(check(t, options(dir), CheckOptions{})); len(p) != namedStrangers+1 || !strings.Contains(p[0].What, "21 more") {
		t.Errorf("%d problems, the first %+v; want %d and one for the rest", len(p), p[0], namedStrangers)
	}
}

// TestStrangersFile: one file of somebody else among one's own is left out alone.
func TestStrangersFile(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	fill(t, dir)
	all := files(t, dir, "*.bin")
	if err := os.Chown(filepath.Join(dir, all[0]), stranger, stranger); err != nil {
		t.Fatal(err)
	}
	l, err := List(t.Context(), options(dir), -1)
	if err != nil || l.Refused.Count != 1 || len(l.Segments) != len(all)-1 {
		t.Errorf("%v, %+v of %d", err, l, len(all))
	}
}

// TestOwnersCampaign: root looks after the campaign of whoever owns its directory;
// and the members of a group after theirs, whose permissions are right then.
func TestOwnersCampaign(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	d := fill(t, dir)
	give(t, dir, stranger, stranger)
	if err := os.Chown(dir, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	if _, x := export(t, options(dir), ExportOptions{}); x.Blocks != len(d.blocks) {
		t.Errorf("exported %d blocks of %d", x.Blocks, len(d.blocks))
	}
	wantClean(t, "the owner's", dir)

	give(t, dir, stranger+1, group)
	o := options(dir)
	o.Group = group
	for _, path := range append(files(t, dir, ""), files(t, dir, "*")...) {
		info, err := os.Lstat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		mode := info.Mode().Perm()
		if err := os.Chmod(filepath.Join(dir, path), mode|mode>>3&0o050); err != nil {
			t.Fatal(err)
		}
	}
	if r := check(t, o, CheckOptions{}); !r.Clean || r.Totals.Distinct != len(d.blocks) {
		t.Errorf("with the group: %+v, %+v", r.Totals, problems(r))
	}
	if r := check(t, options(dir), CheckOptions{}); r.Totals.Segments != 0 {
		t.Errorf("without the group: %+v", r.Totals)
	}
	to := filepath.Join(t.TempDir(), "to")
	stream, _ := export(t, o, ExportOptions{})
	if _, err := imported(t, to, stream); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(to, files(t, to, "*.bin")[0]))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v", info, err)
	}
}
