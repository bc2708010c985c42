package main

import (
	"testing"

	"cascadekv/internal/testing/testdocs"
)

func TestDocumentedVerbsAndFlagsExist(t *testing.T) {
	root := (&app{}).root()
	for _, words := range testdocs.Commands(t, "../..", "cascade gpu", 3) {
		testdocs.Check(t, root, words)
	}
	for _, words := range testdocs.Commands(t, "../..", "cascade bench", 8) {
		if words[0] == "hbm" {
			testdocs.Check(t, root, words)
		}
	}
}
