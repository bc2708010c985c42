package main

import (
	"os"
	"testing"

	"cascadekv/cmd/cascaded/heed"
)

// TestMain leaves the signals of a test program to what they do to others.
func TestMain(m *testing.M) {
	heed.Stop()
	os.Exit(m.Run())
}
