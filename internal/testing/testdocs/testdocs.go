package testdocs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Read returns the documents below the given root of the tree whose commands
// people type: not those of bytes.
func Read(t *testing.T, root string) string {
	t.Helper()
	documents, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(documents) == 0 {
		t.Fatal(documents, err)
	}
	var all strings.Builder
	for _, name := range append(documents, filepath.Join(root, "README.md")) {
		if base := filepath.Base(name); base == "protocol.md" || base == "format.md" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Commands returns the words of each command of program in the documents below
// root; a command that names several verbs, as in "a|b", is returned once for
// each. It fails the test when there are fewer than least.
func Commands(t *testing.T, root, program string, least int) (commands [][]string) {
	t.Helper()
	lines := regexp.MustCompile("(?m)(?:^ *|`)(?:bin/)?"+program+" ([^\n`)]+)").FindAllStringSubmatch(Read(t, root), -1)
	for _, m := range lines {
		words := strings.Fields(m[1])
		for _, name := range strings.Split(words[0], "|") {
			commands = append(commands, append([]string{name}, words[1:]...))
		}
	}
	if len(commands) < least {
		t.Fatalf("found only %v", commands)
	}
	return commands
}

// Check reports an error unless the verb and the flags of a command exist.
func Check(t *testing.T, root *cobra.Command, words []string) {
	t.Helper()
	verb, rest, err := root.Find(words)
	if err != nil || verb == root {
		t.Errorf("%s %q: no such verb: %v", root.Name(), words, err)
		return
	}
	verb.InitDefaultHelpFlag()
	for _, w := range rest {
		if w == "--" {
			break // the command of another program
		}
		if name, isFlag := strings.CutPrefix(w, "--"); isFlag && !hasFlag(verb, name) {
			t.Errorf("%s %q: no flag --%s", root.Name(), words, name)
		}
	}
}

func hasFlag(c *cobra.Command, name string) bool {
	name, _, _ = strings.Cut(name, "=")
	return c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil
}
