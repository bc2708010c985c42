package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// documents are the texts whose commands people will type.
var documents = []string{"../../README.md", "../../docs/install.md"}

func readAll(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range documents {
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
	lines := regexp.MustCompile("(?m)(?:^|`)bin/cascade ([^\n`)]+)").FindAllStringSubmatch(readAll(t), -1)
	if len(lines) < 8 {
		t.Fatalf("found only %v", lines)
	}
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	for _, m := range lines {
		words := strings.Fields(m[1])
		verb, rest, err := root.Find(words)
		if err != nil || verb == root {
			t.Errorf("bin/cascade %s: no such verb: %v", m[1], err)
			continue
		}
		verb.InitDefaultHelpFlag()
		for _, w := range rest {
			if name, isFlag := strings.CutPrefix(w, "--"); isFlag && !hasFlag(verb, name) {
				t.Errorf("bin/cascade %s: no flag --%s", m[1], name)
			}
		}
	}
}

func hasFlag(c *cobra.Command, name string) bool {
	name, _, _ = strings.Cut(name, "=")
	return c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil
}
