package testman

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

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

// Command fails the test unless the page of a program has each of its verbs and flags, and renders
// without a warning.
func Command(t *testing.T, root *cobra.Command, name string, page []byte) {
	t.Helper()
	text := Render(t, name, page)
	seen := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			if !verb.Hidden && verb.Name() != "help" {
				check(verb)
			}
		}
		if c.HasSubCommands() {
			return
		}
		if !strings.Contains(text, c.CommandPath()) {
			t.Errorf("%s is without %s", name, c.CommandPath())
		}
		for line := range strings.SplitSeq(c.NonInheritedFlags().FlagUsages(), "\n") {
			words := strings.Fields(strings.ReplaceAll(line, `"`, ""))
			if len(words) < 2 || words[0] == "-h," {
				continue
			}
			if seen++; !strings.Contains(text, words[0]) || !strings.Contains(text, words[len(words)-1]) {
				t.Errorf("%s has %s without %s", name, c.CommandPath(), line)
			}
		}
	}
	check(root)
	if seen < 5 {
		t.Errorf("%d flags were looked for in %s", seen, name)
	}
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
