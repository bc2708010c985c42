package main

import (
	"encoding/json"
	"strings"
	"testing"

	"cascadekv/internal/bench"
)

func TestBenchCodec(t *testing.T) {
	args := []string{"bench", "codec", "--size", "1m", "--total", "2m", "--rounds", "1", "--time", "1ns"}
	got := cascadeCommand("", nil, append(args, "--json")...)
	var res bench.CodecResult
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || got.status != exitOK || len(res.Settings) != 4 || res.Ratio < 1.2 {
		t.Errorf("%v in %+v", err, got)
	}
	for _, s := range res.Settings {
		if s.Bytes != 1<<20 || s.Auto == "" || len(s.Codecs) == 0 {
			t.Errorf("%+v", s)
		}
	}
	if got := cascadeCommand("", nil, args...); got.status != exitOK || !strings.Contains(got.out, "auto: shuffle2+zstd") || !strings.Contains(got.out, "PLANES") {
		t.Errorf("%+v", got)
	}
	if got := cascadeCommand("", nil, "bench", "codec", "--rounds", "0"); got.status != exitUsage {
		t.Errorf("no rounds: %+v", got)
	}
}

func TestBenchTuner(t *testing.T) {
	args := []string{"bench", "tuner", "--requests", "200"}
	got := cascadeCommand("", nil, append(args, "--json")...)
	var res struct {
		Unit   string `json:"unit"`
		Shapes []struct {
			Shape  string           `json:"shape"`
			Stages []map[string]any `json:"stages"`
			Total  map[string]any   `json:"total"`
		} `json:"shapes"`
	}
	if err := json.Unmarshal([]byte(got.out), &res); err != nil || got.status != exitOK || res.Unit != "pages" || len(res.Shapes) != 2 {
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
	if got := cascadeCommand("", nil, args...); got.status != exitOK || !strings.Contains(got.out, "pebble tree") || !strings.Contains(got.out, "controller against fixed") {
		t.Errorf("%+v", got)
	}
	if got := cascadeCommand("", nil, "bench", "tuner", "--requests", "-5"); got.status != exitFailure || !strings.Contains(got.err, "-5 requests") {
		t.Errorf("negative: %+v", got)
	}
}

// TestBenchLustreKeeps: what one call writes the next one reads, and says so.
func TestBenchLustreKeeps(t *testing.T) {
	bench := func(more ...string) outcome {
		return cascadeCommand("", nil, append([]string{"bench", "lustre", "--size", "1m"}, more...)...)
	}
	dir := t.TempDir()
	if got := bench("--dir", dir, "--keep", "--kept"); got.status != exitUsage || !strings.Contains(got.err, "one of them at a time") {
		t.Errorf("both: %+v", got)
	}
	if got := bench("--dir", dir, "--kept"); got.status != exitFailure || !strings.Contains(got.err, "write some with --keep") {
		t.Errorf("nothing there: %+v", got)
	}
	if got := bench("--dir", dir, "--rounds", "1", "--keep"); got.status != exitOK || !strings.Contains(got.out, "cascade bench lustre --kept --dir "+dir) {
		t.Fatalf("keep: %+v", got)
	}
	if got := bench("--dir", dir, "--kept"); got.status != exitOK || !strings.Contains(got.out, "SPEED-UP") || !strings.Contains(got.out, "42KiB   24") {
		t.Errorf("kept: %+v", got)
	}
}
