package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/testing/fakecuda"
)

// command runs one command line.
func command(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = (&app{out: &stdout, err: &stderr}).run(t.Context(), args)
	return status, stdout.String(), stderr.String()
}

// TestHBMWithoutDriver: that is a failure, which names what is missing, and what runs
// without a GPU.
func TestHBMWithoutDriver(t *testing.T) {
	status, out, errs := command(t, "hbm", "--library", filepath.Join(t.TempDir(), "none.so"))
	if status != cli.Failure || out != "" || !strings.Contains(errs, "no CUDA driver") || !strings.Contains(errs, "libfakecuda.so") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	for _, args := range [][]string{{"--rounds", "0"}, {"--size", "0"}, {"--block", "5k"}, {"--size", "5m"}} {
		args = append([]string{"hbm", "--library", fakecuda.Library(t)}, args...)
		if status, _, errs := command(t, args...); status != cli.Usage || !strings.Contains(errs, "bench hbm: ") {
			t.Errorf("%q: status %d, %q", args, status, errs)
		}
	}
}

// TestHBM: a result of the stand-in says what it is.
func TestHBM(t *testing.T) {
	args := []string{"hbm", "--library", fakecuda.Library(t), "--size", "128k", "--block", "16k", "--rounds", "1", "--entries", "100"}
	status, out, errs := command(t, append(args, "--json")...)
	var res hbmResult
	if err := json.Unmarshal([]byte(out), &res); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s%s", status, err, out, errs)
	}
	if !res.Emulated || res.Note != emulatedNote || res.GPU != "no GPU (fake 0)" || res.CUDA != "13.0" || res.Result == nil || res.Errors != 0 || res.Plain.ToGPU.MBps <= 0 {
		t.Errorf("%s", out)
	}
	if status, out, errs := command(t, args...); status != 0 || !strings.HasPrefix(out, emulatedNote+"\n") || !strings.Contains(out, "tier, pinned memory") || !strings.Contains(out, "errors: 0") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if status, _, errs := command(t, append(args, "--gpu", "7")...); status != cli.Failure || !strings.Contains(errs, "GPU 7") {
		t.Errorf("a GPU that is not there: status %d, %q", status, errs)
	}
}
