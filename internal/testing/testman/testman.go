package testman

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// Render returns a page of that name, "cascade.1", as man prints it, its spaces and
// line ends each one space. It reports what man and groff warn of.
func Render(t *testing.T, name string, page []byte) string {
	t.Helper()
	man := testneed.Program(t, "man", "install man-db")
	groff := testneed.Program(t, "groff", "install groff-base")
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, page, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, groff, "-ww", "-man", "-Tutf8", path)
	text := run(t, man, "--warnings", "-E", "UTF-8", "-l", path)
	text = regexp.MustCompile(`‐\n *`).ReplaceAllString(text, "") // a word that was hyphenated
	return strings.Join(strings.Fields(text), " ")
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	var warnings bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "MANWIDTH=200", "MANPAGER=cat", "MAN_KEEP_FORMATTING=", "LC_ALL=C.UTF-8")
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil || warnings.Len() > 0 {
		t.Errorf("%s %v: %v\n%s", program, args, err, warnings.Bytes())
	}
	return string(out)
}
