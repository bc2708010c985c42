package main

import (
	"os"
	"regexp"
	"testing"

	"cascadekv/internal/testing/testdocs"
)

func TestDocumentedTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)").FindAllStringSubmatch(testdocs.Read(t, "../.."), -1)
	if len(targets) < 4 {
		t.Fatalf("found only %v", targets)
	}
	for _, m := range targets {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
			t.Errorf("the documents name %q, which is no target", m[0])
		}
	}
}

// TestDocumentedVerbsAndFlagsExist leaves what follows cascade bench and cascade gpu to
// cmd/cascade-bench and cmd/cascade-gpu.
func TestDocumentedVerbsAndFlagsExist(t *testing.T) {
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	for _, words := range testdocs.Commands(t, "../..", "cascade", 40) {
		if words[0] == "bench" || words[0] == "gpu" {
			words = words[:1]
		}
		testdocs.Check(t, root, words)
	}
}
