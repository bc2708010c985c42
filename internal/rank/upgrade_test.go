package rank

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/rank/program"
	"cascadekv/internal/server"
)

// TestUnlistedProgramIsNotRun: a program that is refused is not even asked.
func TestUnlistedProgramIsNotRun(t *testing.T) {
	dir := t.TempDir()
	mark, script := filepath.Join(dir, "ran"), filepath.Join(dir, "cascaded")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n: > "+mark+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &Rank{program: program.Program{Path: "/opt/1/cascaded"}, settings: &settings{}}
	err := r.upgrade(t.Context(), server.Upgrade{Binary: script})
	if !errors.Is(err, program.ErrUnlisted) || !strings.Contains(err.Error(), "upgrade_binaries") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was run")
	}
	r.settings.mu.config.UpgradeTo = []string{script}
	if err := r.upgrade(t.Context(), server.Upgrade{Binary: script}); !errors.Is(err, program.ErrBinary) {
		t.Errorf("listed: %v", err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("listed, it was not asked: %v", err)
	}
}
