package lint

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

const generateMark = "//go:generate "

// checkGenerated runs the program of a go:generate line in dir, whose last word
// is the file that it writes, for a file of its own; "" when it writes the same.
func checkGenerated(t *testing.T, dir, line string) string {
	t.Helper()
	words := strings.Fields(line)
	if len(words) < 2 {
		return "names no file that it writes"
	}
	program, args := words[0], words[1:]
	last := len(args) - 1
	name := args[last]
	args[last] = filepath.Join(t.TempDir(), filepath.Base(name))
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	made, err := os.ReadFile(args[last])
	if err != nil {
		return err.Error()
	}
	kept, err := os.ReadFile(filepath.Join(dir, name))
	switch {
	case err != nil:
		return err.Error()
	case !bytes.Equal(made, kept):
		return name + " is not current: make generate"
	}
	return ""
}

// TestGenerated: data that a program computes is what it computes now. A file
// that somebody changed by hand would be golden for nobody else.
func TestGenerated(t *testing.T) {
	lines := 0
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, group := range f.tree.Comments {
				for _, c := range group.List {
					line, ok := strings.CutPrefix(c.Text, generateMark)
					if !ok {
						continue
					}
					lines++
					t.Run(p.at(f, c.Pos()), func(t *testing.T) {
						if strings.Contains(line, ".py ") {
							testneed.Program(t, "python3", "apt-get install python3")
						}
						if strings.Contains(line, "clang-ptx ") {
							script := filepath.Join(root(t), "scripts/clang-ptx")
							testneed.That(t, exec.Command(script, "--have").Run() == nil, "the clang whose PTX is checked in", "scripts/clang-ptx --install, as root")
						}
						if what := checkGenerated(t, filepath.Join(root(t), p.dir), line); what != "" {
							t.Error(what)
						}
					})
				}
			}
		}
	}
	if lines == 0 {
		t.Error("no go:generate line: make generate makes nothing")
	}
}

func TestGeneratedCanFail(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"source": "one", "same": "one", "other": "two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"cp source same":   "",
		"cp source other":  "not current",
		"cp source absent": "no such file",
		"cp absent same":   "exit status",
		"true same":        "no such file",
		"true":             "names no file",
	} {
		if got := checkGenerated(t, dir, line); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "other")); err != nil || string(kept) != "two" {
		t.Errorf("the check wrote the file that it judges: %q, %v", kept, err)
	}
}
