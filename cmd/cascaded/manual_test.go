package main

import (
	"testing"
	"time"

	"cascadekv/cmd/manual"
	"cascadekv/internal/testing/testman"
)

func TestManPage(t *testing.T) {
	root := newCommand(nil)
	testman.Command(t, root, "cascaded.8", manual.Command(root, 8, time.Unix(1e9, 0)))
}
