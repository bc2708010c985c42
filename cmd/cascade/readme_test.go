package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// readAll reads the texts whose commands people will type: not those of bytes.
func readAll(t *testing.T) string {
	t.Helper()
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatal(documents, err)
	}
	var all strings.Builder
	for _, name := range append(documents, "../../README.md") {
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

func TestDocumentedTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)").FindAllStringSubmatch(readAll(t), -1)
	if len(targets) < 4 {
		t.Fatalf("found only %v", targets)
	}
	for _, m := range targets {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
			t.Errorf("the documents name %q, which is no target", m[0])
		}
	}
}

func TestDocumentedVerbsAndFlagsExist(t *testing.T) {
	lines := regexp.MustCompile("(?m)(?:^ *|`)(?:bin/)?cascade ([^\n`)]+)").FindAllStringSubmatch(readAll(t), -1)
	if len(lines) < 40 {
		t.Fatalf("found only %v", lines)
	}
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	for _, m := range lines {
		words := strings.Fields(m[1])
		for _, name := range strings.Split(words[0], "|") {
			checkCommand(t, root, append([]string{name}, words[1:]...))
		}
	}
}

func checkCommand(t *testing.T, root *cobra.Command, words []string) {
	t.Helper()
	verb, rest, err := root.Find(words)
	if err != nil || verb == root {
		t.Errorf("cascade %q: no such verb: %v", words, err)
		return
	}
	verb.InitDefaultHelpFlag()
	for _, w := range rest {
		if name, isFlag := strings.CutPrefix(w, "--"); isFlag && !hasFlag(verb, name) {
			t.Errorf("cascade %q: no flag --%s", words, name)
		}
	}
}

func hasFlag(c *cobra.Command, name string) bool {
	name, _, _ = strings.Cut(name, "=")
	return c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil
}
