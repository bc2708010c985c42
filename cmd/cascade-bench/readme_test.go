package main

import (
	"testing"

	"cascadekv/internal/testing/testdocs"
)

func TestDocumentedVerbsAndFlagsExist(t *testing.T) {
	root := (&app{}).root()
	for _, words := range testdocs.Commands(t, "../..", "cascade bench", 8) {
		testdocs.Check(t, root, words)
	}
}
