package main

import (
	"testing"
	"time"

	"cascadekv/cmd/manual"
	"cascadekv/internal/testing/testman"
)

func TestManPage(t *testing.T) {
	root := (&app{}).root()
	testman.Command(t, root, "cascade-gpu.1", manual.Command(root, 1, time.Unix(1e9, 0)))
}
