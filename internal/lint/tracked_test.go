package lint

import (
	"bytes"
	"fmt"
	"os"
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
	for _, name := range tracked(t) {
		data, err := os.ReadFile(filepath.Join(top, name))
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
