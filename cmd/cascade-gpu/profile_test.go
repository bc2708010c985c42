package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/cmd/cascade-bench/slackbench"
	"cascadekv/cmd/cascade-gpu/profiling"
	"cascadekv/gpu/gio"
	"cascadekv/internal/cli"
	"cascadekv/internal/testing/fakecuda"
	"cascadekv/internal/testing/race"
)

// TestProfile: a profile has the driver's name of the GPU; the second call uses it again.
func TestProfile(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	folder := filepath.Join(t.TempDir(), "profiles")
	args := []string{"profile", "--model", "m", "--configuration", "tp=1", "--folder", folder, "--dir", t.TempDir(), "--library", fakecuda.Library(t),
		"--engine", "user", "--rounds", "1", "--iocbs", "2", "--transfers", "2", "--block-tokens", "16", "--kv-bytes", "1024", "--max-tokens", "1024"}
	status, out, errs := command(t, args...)
	if status != 0 || !strings.Contains(out, "computed, not measured") || !strings.Contains(out, "measured by user") || !strings.Contains(out, `"m" on "no GPU (fake 0)", "tp=1"`) {
		t.Fatalf("status %d: %s%s", status, out, errs)
	}
	status, out, errs = command(t, append(args, "--json")...)
	var r profiling.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 || !r.Reused || r.GPU != "no GPU (fake 0)" || filepath.Dir(r.Path) != folder {
		t.Errorf("status %d, %v: %s%s", status, err, out, errs)
	}
	if status, out, _ := command(t, args...); status != 0 || !strings.Contains(out, "nothing was measured") {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestDescribeGPU: flags go before what the driver says.
func TestDescribeGPU(t *testing.T) {
	o := profiling.Options{Figures: slackbench.Llama8B()}
	o.Figures.SMs, o.Figures.Ring = 7, gio.Facts{}
	if err := describeGPU(fakecuda.Library(t), 0, true, &o); err != nil || o.GPU != "no GPU (fake 0)" || o.Figures.SMs != 7 {
		t.Errorf("%+v, %v", o, err)
	}
	o.GPU = ""
	if err := describeGPU(fakecuda.Library(t), 0, false, &o); err != nil || o.Figures.SMs == 7 || o.Figures.SMs < 1 {
		t.Errorf("%d SMs, %v", o.Figures.SMs, err)
	}
	if o.Figures.Ring != gio.H100 { // the stand-in is like one
		t.Errorf("the ring: %+v", o.Figures.Ring)
	}
	o.GPU = "another"
	if err := describeGPU("/nonexistent", 0, false, &o); err != nil || o.GPU != "another" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestProfileUsage(t *testing.T) {
	folder := t.TempDir()
	for want, args := range map[string][]string{
		"--model":     {"--folder", folder},
		"--folder":    {"--model", "m"},
		"--gpu-name":  {"--model", "m", "--folder", folder, "--library", filepath.Join(folder, "none.so")},
		"whole pages": {"--model", "m", "--folder", folder, "--gpu-name", "g"},
	} {
		status, out, errs := command(t, append([]string{"profile"}, args...)...)
		if status != cli.Usage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
}
