package lint

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxTracked bounds a file of the repository, in bytes.
const maxTracked = 128 << 10

// checkTracked judges a file that git tracks; "" when there is nothing to say.
// Golden bytes are data, and lie under testdata.
func checkTracked(name string, data []byte) string {
	switch {
	case len(data) > maxTracked:
		return fmt.Sprintf("%d bytes, at most %d", len(data), maxTracked)
	case bytes.IndexByte(data, 0) >= 0 && !slices.Contains(strings.Split(name, "/"), "testdata"):
		return "not text"
	}
	if n := bytes.Count(data, []byte("\n")); n > maxLines && slices.Contains([]string{".c", ".h", ".s", ".py", ".sh", ""}, path.Ext(name)) {
		return fmt.Sprintf("%d lines, at most %d", n, maxLines)
	}
	return ""
}

// TestTracked: a repository keeps what people wrote. What a build left would
// stay in its history for ever.
func TestTracked(t *testing.T) {
	top := root(t)
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		t.Skip("this is no clone: git tells which files belong to it")
	}
	if _, err := exec.LookPath("git"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no git, which tells which files belong to the repository")
	}
	out, err := exec.Command("git", "-C", top, "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	names := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if len(names) < 100 {
		t.Fatalf("git tracks %d files: the listing is wrong", len(names))
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue // about to be removed
		}
		if err != nil {
			t.Fatal(err)
		}
		if what := checkTracked(name, data); what != "" {
			t.Errorf("%s: %s\n\twhy: what is not written by people is made, or found, where it is needed", name, what)
		}
	}
}

func TestTrackedCanFail(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"cascade.test", "\x7fELF\x02\x01\x01\x00", "not text"},
		{"lustre/segment/testdata/v1.bin", "\x00", ""},
		{"testdatax/v1.bin", "\x00", "not text"},
		{"README.md", strings.Repeat("\n", 700), ""},
		{"scripts/run", strings.Repeat("\n", 601), "601 lines"},
		{"clients/python/a.py", strings.Repeat("\n", 600), ""},
		{"testdata/a.bin", strings.Repeat("a", maxTracked+1), "bytes"},
		{"testdata/a.bin", strings.Repeat("a", maxTracked), ""},
	} {
		if got := checkTracked(c.name, []byte(c.text)); got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
			t.Errorf("%s of %d bytes: %q, want %q", c.name, len(c.text), got, c.want)
		}
	}
}
