package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cascadekv/cmd/cascade-bench/codecbench"
	"cascadekv/internal/cli"
)

// outcome is what one command line did.
type outcome struct {
	status   int
	out, err string
}

func benchCommand(args ...string) outcome {
	var stdout, stderr bytes.Buffer
	a := &app{out: &stdout, err: &stderr}
	status := a.run(context.Background(), args)
	return outcome{status, stdout.String(), stderr.String()}
}

// TestUsage: mistakes on the command line are status 2 and name the command that
// was typed; flags of cascade that mean nothing here are accepted.
func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"bench of nothing":  {[]string{"resp", "--size", "0"}, cli.Usage, "cascade: bench resp: --size"},
		"no such verb":      {[]string{"fly"}, cli.Usage, "unknown command"},
		"no such flag":      {[]string{"put", "--high"}, cli.Usage, "see cascade bench put --help"},
		"remote nothing":    {[]string{"remote", "--blocks", "0"}, cli.Usage, "cascade: bench remote: --blocks"},
		"stages of nothing": {[]string{"stages", "--warm", "0"}, cli.Usage, "cascade: bench stages: --requests"},
		"a hit rate of 1":   {[]string{"slack", "--hits", "0.5,1"}, cli.Usage, "cascade: bench slack: a hit rate of 1"},
		"no hit rate":       {[]string{"slack", "--hits", "0.5,x"}, cli.Usage, `cascade: bench slack: --hits "x"`},
		"no disks":          {[]string{"slack", "--read", "0"}, cli.Usage, "cascade: bench slack: a rate of reads of 0"},
		"gio nowhere":       {[]string{"gio"}, cli.Usage, "cascade: bench gio: name a directory"},
		"gio of nothing":    {[]string{"gio", "--dir", "/", "--depth", "0"}, cli.Usage, "cascade: bench gio: --rounds"},
		"an argument":       {[]string{"put", "x"}, cli.Usage, "cascade bench put does not take 1 arguments"},
		"flags of cascade":  {[]string{"--socket", "/s", "--timeout", "1s", "--config", "f", "codec", "--rounds", "0"}, cli.Usage, "--rounds must be above 0"},
	} {
		if got := benchCommand(c.args...); got.status != c.status || !strings.Contains(got.err, c.want) || got.out != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, args := range [][]string{{}, {"--help"}} {
		if got := benchCommand(args...); got.status != cli.OK || !strings.Contains(got.out, "cascade bench [command]") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// TestBenchHBM: that verb is cascade-gpu's, which gets all arguments.
func TestBenchHBM(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cascade-gpu")
	t.Setenv("PATH", dir)
	var ran []string
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		a := &app{out: &out, err: &out, exec: func(_ string, args, _ []string) error { ran = args; return nil }}
		return a.run(context.Background(), args), out.String()
	}
	if status, out := run("hbm"); status != cli.Failure || !strings.Contains(out, "hbm: cascade-gpu is neither beside this program nor in PATH") {
		t.Errorf("without the program: status %d, %s", status, out)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{"--json hbm --size 1m": {path, "hbm", "--json", "--size", "1m"}, "hbm --help": {path, "hbm", "--help"}} {
		if status, out := run(strings.Fields(line)...); status != cli.OK || out != "" || !slices.Equal(ran, want) {
			t.Errorf("%s: status %d, %q, ran %q", line, status, out, ran)
		}
	}
}

func TestBenchCodec(t *testing.T) {
	args := []string{"codec", "--size", "1m", "--total", "2m", "--rounds", "1", "--time", "1ns"}
	got := benchCommand(append(args, "--json")...)
	var res codecbench.Result
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || got.status != cli.OK || len(res.Settings) != 4 || res.Ratio < 1.2 {
		t.Errorf("%v in %+v", err, got)
	}
	for _, s := range res.Settings {
		if s.Bytes != 1<<20 || s.Auto == "" || len(s.Codecs) == 0 {
			t.Errorf("%+v", s)
		}
	}
	if got := benchCommand(args...); got.status != cli.OK || !strings.Contains(got.out, "auto: shuffle2+zstd") || !strings.Contains(got.out, "PLANES") {
		t.Errorf("%+v", got)
	}
	if got := benchCommand("codec", "--rounds", "0"); got.status != cli.Usage {
		t.Errorf("no rounds: %+v", got)
	}
}

func TestBenchTuner(t *testing.T) {
	args := []string{"tuner", "--requests", "200"}
	got := benchCommand(append(args, "--json")...)
	var res struct {
		Unit   string `json:"unit"`
		Shapes []struct {
			Shape  string           `json:"shape"`
			Stages []map[string]any `json:"stages"`
			Total  map[string]any   `json:"total"`
		} `json:"shapes"`
	}
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || got.status != cli.OK || res.Unit != "pages" || len(res.Shapes) != 2 {
		t.Fatalf("%v in %+v", err, got)
	}
	for _, s := range res.Shapes {
		if len(s.Stages) != 10 {
			t.Errorf("%s: %d stages", s.Shape, len(s.Stages))
		}
		for _, field := range []string{"expected_hit", "setting", "mix", "controller", "fixed", "best_static", "best_stages"} {
			if s.Stages[0][field] == nil {
				t.Errorf("%s: a stage has no %q", s.Shape, field)
			}
		}
	}
	if got := benchCommand(args...); got.status != cli.OK || !strings.Contains(got.out, "pebble tree") || !strings.Contains(got.out, "controller against fixed") {
		t.Errorf("%+v", got)
	}
	if got := benchCommand("tuner", "--requests", "-5"); got.status != cli.Failure || !strings.Contains(got.err, "-5 requests") {
		t.Errorf("negative: %+v", got)
	}
}

func TestBenchSlack(t *testing.T) {
	args := []string{"slack", "--hits", "0.5,0.99", "--requests", "2"}
	got := benchCommand(append(args, "--json")...)
	var res map[string]any
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || got.status != cli.OK {
		t.Fatalf("%v in %+v", err, got)
	}
	for _, field := range []string{"profile", "rows", "crossover", "io_bound_from", "bubble_share_max", "ttft_ratio_min", "io_gbps_ratio_min", "estimate_error", "cpu_us_per_layer"} {
		if res[field] == nil {
			t.Errorf("no field %q in %s", field, got.out)
		}
	}
	if rows, ok := res["rows"].([]any); !ok || len(rows) != 2 {
		t.Errorf("rows: %v", res["rows"])
	}
	if got := benchCommand(args...); got.status != cli.OK || !strings.Contains(got.out, "99 % (I/O-bound)") || !strings.Contains(got.out, "crossover, bubble above compute") {
		t.Errorf("%+v", got)
	}
}

// TestBenchScatter is the example of Tutti §3.1.
func TestBenchScatter(t *testing.T) {
	got := benchCommand("scatter")
	for _, want := range []string{"15728640", "983040", "3840MiB", "15MiB"} {
		if got.status != cli.OK || !strings.Contains(got.out, want) {
			t.Errorf("no %s: %+v", want, got)
		}
	}
	var res scatterResult
	got = benchCommand("scatter", "--pool", "1G", "--json")
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || res.TableBytes != 16384*16 || res.Lists != 16384 || res.PRPBytes != 64<<20 {
		t.Errorf("%v in %+v", err, got)
	}
	if got = benchCommand("scatter", "--pool", "1"); got.status != cli.Usage || !strings.Contains(got.err, "--pool") {
		t.Errorf("too small: %+v", got)
	}
}

// TestBenchLustreKeeps: what one call writes the next one reads, and says so.
func TestBenchLustreKeeps(t *testing.T) {
	bench := func(more ...string) outcome {
		return benchCommand(append([]string{"lustre", "--size", "1m"}, more...)...)
	}
	dir := t.TempDir()
	if got := bench("--dir", dir, "--keep", "--kept"); got.status != cli.Usage || !strings.Contains(got.err, "one of them at a time") {
		t.Errorf("both: %+v", got)
	}
	if got := bench("--dir", dir, "--kept"); got.status != cli.Failure || !strings.Contains(got.err, "write some with --keep") {
		t.Errorf("nothing there: %+v", got)
	}
	if got := bench("--dir", dir, "--rounds", "1", "--keep"); got.status != cli.OK || !strings.Contains(got.out, "cascade bench lustre --kept --dir "+dir) {
		t.Fatalf("keep: %+v", got)
	}
	if got := bench("--dir", dir, "--kept"); got.status != cli.OK || !strings.Contains(got.out, "SPEED-UP") || !strings.Contains(got.out, "42KiB   24") {
		t.Errorf("kept: %+v", got)
	}
}
