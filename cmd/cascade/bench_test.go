package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/cli"
)

// fakeBench puts a program into PATH, and nothing else but the shell.
func fakeBench(t *testing.T, name, script string) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	return path
}

// TestBenchPassesOn: cascade-bench and cascade-gpu get all arguments, flags included, and the
// environment.
func TestBenchPassesOn(t *testing.T) {
	bench := fakeBench(t, benchProgram, "")
	gpu := filepath.Join(filepath.Dir(bench), gpuProgram)
	if err := os.Link(bench, gpu); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ args, want []string }{
		"a verb":                 {[]string{"bench", "put", "--size", "1m", "--json"}, []string{"put", "--size", "1m", "--json"}},
		"flags before":           {[]string{"--json", "bench", "put"}, []string{"--json", "put"}},
		"help of bench":          {[]string{"bench", "--help"}, []string{"--help"}},
		"help, another way":      {[]string{"help", "bench"}, []string{"--help"}},
		"of a verb of it":        {[]string{"help", "bench", "put"}, []string{"put", "--help"}},
		"help of a verb":         {[]string{"bench", "put", "-h"}, []string{"put", "-h"}},
		"nothing":                {[]string{"bench"}, nil},
		"cascade-gpu":            {[]string{"gpu", "hbm", "--json"}, []string{"hbm", "--json"}},
		"help of a verb of that": {[]string{"help", "gpu", "probe"}, []string{"probe", "--help"}},
		"what it must judge":     {[]string{"bench", "fly", "--high"}, []string{"fly", "--high"}},
	} {
		var ran string
		var got, env []string
		var out bytes.Buffer
		a := &app{out: &out, err: &out, env: []string{"A=b"}, exec: func(path string, args, environment []string) error {
			ran, got, env = path, args, environment
			return nil
		}}
		path := bench
		if slices.Contains(c.args, "gpu") {
			path = gpu
		}
		status := a.run(context.Background(), c.args)
		if status != cli.OK || ran != path || !slices.Equal(got, append([]string{path}, c.want...)) || !slices.Equal(env, []string{"A=b"}) || out.Len() > 0 {
			t.Errorf("%s: status %d, ran %s with %q and %q, wrote %q", name, status, ran, got, env, out.String())
		}
	}
}

// TestBenchIsMissing: who has no cascade-bench learns what to do.
func TestBenchIsMissing(t *testing.T) {
	fakeBench(t, "another", "")
	got := cascadeCommand("", nil, "bench", "put")
	if got.status != cli.Failure || !strings.Contains(got.err, benchProgram) || !strings.Contains(got.err, "make build") {
		t.Errorf("%+v", got)
	}
	var out bytes.Buffer
	fakeBench(t, benchProgram, "")
	a := &app{out: &out, err: &out, exec: func(string, []string, []string) error { return syscall.ENOEXEC }}
	if status := a.run(context.Background(), []string{"bench", "put"}); status != cli.Failure || !strings.Contains(out.String(), "start") {
		t.Errorf("status %d, %s", status, out.String())
	}
}

// TestBenchCompletes: the shell's completions are those of cascade-bench.
func TestBenchCompletes(t *testing.T) {
	fakeBench(t, benchProgram, `[ "$*" = "__complete put --s" ] && echo "--size" && echo ":4"`)
	if got := cascadeCommand("", nil, "__complete", "bench", "put", "--s"); !strings.Contains(got.out, "--size\n:4\n") {
		t.Errorf("%+v", got)
	}
}

// TestBenchIsReplaced: a program that becomes cascade-bench has its exit status
// and is ended by the signals that it ends by.
func TestBenchIsReplaced(t *testing.T) {
	const variable = "CASCADE_TEST_BENCH"
	if os.Getenv(variable) != "" {
		a := &app{out: os.Stdout, err: os.Stderr, env: os.Environ(), exec: syscall.Exec}
		os.Exit(a.run(cli.Interruptible(), []string{"bench", "put"}))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{"exit 7": "exit status 7", "kill -TERM $$": "signal: terminated", "echo $1; exit 1": "exit status 1"} {
		fakeBench(t, benchProgram, script)
		c := exec.Command(self, "-test.run", "^TestBenchIsReplaced$")
		c.Env = append(os.Environ(), variable+"=1")
		out, err := c.Output()
		if err == nil || err.Error() != want {
			t.Errorf("%q ends with %v, want %s", script, err, want)
		}
		if strings.HasPrefix(script, "echo") && string(out) != "put\n" {
			t.Errorf("%q wrote %q", script, out)
		}
	}
}
