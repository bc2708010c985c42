package lustretest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// surprises tells, for each sentence of reference/lustre-real.md by words of
// it, the row of docs/lustre.md's tables, by how it begins, whose tests show
// what it says.
var surprises = []struct {
	row   string
	words []string
}{
	{"layouts by ioctl and attribute", []string{
		"bsize 4096", "LL_IOC_LOV_SETSTRIPE (0x4008669a)", "fsetxattr `lustre.lov`", "Stripe count 40", "count 0, size 0",
		"xattr `lustre.lov` (same bytes", "last u16 of the header", "it is layout_gen", "lcm_layout_gen is 2", "component ids 1, 2", "Component v1 headers", "with one: 32 bytes",
	}},
	{"a second layout is refused", []string{"Second setstripe", "Unaligned stripe size", "index out of range", "empty and without objects", "A directory without a default"}},
	{"success without effect", []string{"trusts lmm_stripe_count", "Read the xattr instead"}},
	{"an inactive OST gives fewer stripes", []string{"leaves out an inactive OST", "setstripe onto it still succeeds", "osp `active=0`", "silently lands on OST 0"}},
	{"`lfs migrate` and `lfs mirror`", []string{"FLR mirror"}},
	{"O_DIRECT takes any alignment", []string{"takes any alignment", "older releases (2.15)"}},
	{"a group lock", []string{"Group locks: same gid", "again on the same fd", "other gid with O_NONBLOCK", "gid 0 EINVAL", "unlock when not held"}},
	{"two mounts are two clients", []string{"Two mounts"}},
	{"fallocate", []string{"Work: fallocate"}},
	{"rename without replacing", []string{"Do not: O_TMPFILE", "RENAME_NOREPLACE"}},
	{"an OST full", []string{"OST full: a short write", "close after it say nothing", "go to the other OST", "Space is back about"}},
	{"two stripes, one OST full", []string{"2-stripe file fails"}},
	{"EDQUOT of space and files", []string{"EDQUOT (122)", "Cached writes pass", "nil (buffered), EDQUOT", "Next 4 KiB", "Inode limit", "Below the qunit"}},
	{"a project's quota", []string{"Project quota", "root is not held", "shows the project limit"}},
	{"an OST inactive at the client", []string{"osc `active=0`", "stat of a file with objects there", "`rm` by busybox", "active=1: all well"}},
	{"an OST unmounted", []string{
		"OST unmounted under load", "placed on the dead OST", "that writer hung too", "The one in D state",
		"client is evicted", "dirty page discard",
	}},
	{"servers restart", []string{"Two machines: server power cut", "none of this shows"}},
	{"eviction", []string{"Eviction by the server", "does not look at fsync"}},
	{"the client's power is cut", []string{"Client power cut", "closed but unsynced 16 MiB", "renames done before"}},
	{"fsync of a directory and a second fsync", []string{
		"The commit rule that follows", "rename before the first fsync", "fsync(directory) loses", "fdatasync and O_SYNC alone",
		"write, fsync(file) |", "write, close, no fsync", "write, fsync, rename |", "rename, **fsync(directory)**", "of a folder is a no-op", "fsync(file) again",
		"by a new descriptor, or syncfs", "fchmod + fsync(file)", "then create another file", "the *first* fsync(file)", "O_SYNC + O_DIRECT", "create, write, **fdatasync**",
		"asks the MDT only for a regular file", "never for a directory", "2.15 asks for both", "lli_synced_to_mds", "the fchmod trick", "commits the earlier ones",
		"commits by itself",
	}},
	{"", []string{ // how it was seen, and what to look at
		"Seen on Lustre 2.17.57", "Where it differs", "Must be switched on", "`kill` is SIGKILL", "powercut.sh", "results waver", "the script syncs",
	}},
}

// sentences are the parts of a page that say one thing each: sentences, clauses
// after a semicolon, and lines of tables.
func sentences(page string) (all []string) {
	var items []string
	for _, line := range strings.Split(page, "\n") {
		line = strings.TrimSpace(line)
		begins := strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "|")
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "|--") || line == "| sequence | result |":
			items = append(items, "")
		case begins || len(items) == 0 || items[len(items)-1] == "":
			items = append(items, line)
		default:
			items[len(items)-1] += " " + line
		}
	}
	for _, item := range items {
		for _, s := range regexp.MustCompile(`[.;]\**\s+`).Split(item, -1) {
			if s != "" {
				all = append(all, s)
			}
		}
	}
	return all
}

// rows are the lines of the tables in docs/lustre.md, section 7, by their first
// column.
func rows(table string) map[string]string {
	all := map[string]string{}
	for _, line := range strings.Split(table, "\n") {
		if first, rest, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok {
			all[first] = rest
		}
	}
	return all
}

// reference reads a page of shared/reference, which is beside the repository.
// With CI=true it has to be there.
func reference(t *testing.T, page string) string {
	t.Helper()
	shared := os.Getenv("CASCADE_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "..", "shared")
	}
	p, err := os.ReadFile(filepath.Join(shared, "reference", page))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") != "true" {
		t.Skipf("this needs the page of what a real Lustre does: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// TestTableHasSurprises: what reference/lustre-real.md says has, sentence by
// sentence, a row in docs/lustre.md that names a test.
func TestTableHasSurprises(t *testing.T) {
	all := rows(section7(t))
	left := sentences(reference(t, "lustre-real.md"))
	for _, s := range surprises {
		found := 0
		for first, rest := range all {
			if s.row != "" && strings.HasPrefix(first, s.row) && strings.Contains(rest, "`Test") {
				found++
			}
		}
		if s.row != "" && found != 1 {
			t.Errorf("%d rows of docs/lustre.md begin with %q and name a test: there has to be one, for %q", found, s.row, s.words)
		}
		for _, words := range s.words {
			rest := without(left, words)
			if len(left)-len(rest) != 1 {
				t.Errorf("%d sentences of reference/lustre-real.md have the words %q: let words of each sentence stand here once", len(left)-len(rest), words)
			}
			left = rest
		}
	}
	for _, s := range left {
		t.Errorf("reference/lustre-real.md says %q: give docs/lustre.md a row with a test that shows it, and surprises words of it", s)
	}
}

// without is all but what has certain words.
func without(all []string, words string) (rest []string) {
	for _, s := range all {
		if !strings.Contains(s, words) {
			rest = append(rest, s)
		}
	}
	return rest
}
