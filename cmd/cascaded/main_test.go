package main

import (
	"os"
	"testing"

	"cascadekv/internal/earlysignal"
)

// TestMain leaves the signals of a test program to what they do to others.
func TestMain(m *testing.M) {
	earlysignal.Stop()
	os.Exit(m.Run())
}
