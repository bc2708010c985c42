package main

import (
	"testing"

	"cascadekv/internal/testing/testdocs"
)

func TestDocumentedVerbsAndFlagsExist(t *testing.T) {
	root := (&app{}).root()
	for _, words := range testdocs.Commands(t, "../..", "cascade bench", 8) {
		if words[0] == "hbm" {
			words = words[:1] // the rest is for cmd/cascade-gpu
		}
		testdocs.Check(t, root, words)
	}
}
