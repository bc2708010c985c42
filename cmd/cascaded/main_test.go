package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"cascadekv/internal/config"
	"cascadekv/internal/earlysignal"
)

// TestMain leaves the signals of a test program to what they do to others.
func TestMain(m *testing.M) {
	earlysignal.Stop()
	os.Exit(m.Run())
}

func TestCommandLine(t *testing.T) {
	var got config.Sources
	command := newCommand(func(s config.Sources, _ bool) { got = s })
	command.SetArgs([]string{"--socket", "/tmp/s", "--listen=127.0.0.1:7000", "--shm-bytes", "4GiB", "--lustre-dir", "/l",
		"--rank", "2", "--policy", "lru", "--verify-reads", "--config", "/c.toml"})
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"socket": "/tmp/s", "listen": "127.0.0.1:7000", "shm.bytes": "4GiB", "lustre.dir": "/l",
		"rank": "2", "policy": "lru", "verify_reads": "true"}
	if len(got.Flags) != len(want) || got.File != "/c.toml" {
		t.Fatalf("got %v and file %q", got.Flags, got.File)
	}
	for path, text := range want {
		if got.Flags[path] != text {
			t.Errorf("%s = %q, want %q", path, got.Flags[path], text)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{"unknown flag": {"--shm-byte", "1"}, "argument": {"start"}} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if got := realMain(args, nil, &bytes.Buffer{}, &stderr); got != exitUsage || !strings.Contains(stderr.String(), "--help") {
				t.Errorf("exit status %d: %s", got, &stderr)
			}
		})
	}
}

func TestBadConfiguration(t *testing.T) {
	var stderr bytes.Buffer
	if got := realMain(nil, []string{"CASCADE_POLICY=fifo"}, &bytes.Buffer{}, &stderr); got != exitUsage || !strings.Contains(stderr.String(), "environment CASCADE_POLICY") {
		t.Errorf("exit status %d\n%s", got, &stderr)
	}
}
