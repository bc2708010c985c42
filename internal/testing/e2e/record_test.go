package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTraceRecord records a replay against a rank, ends that by SIGINT, and compares what
// cascade trace finds in both traces.
func TestTraceRecord(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	dir := t.TempDir()
	made, recorded := filepath.Join(dir, "made.jsonl"), filepath.Join(dir, "recorded.jsonl.gz")
	if status, _, said := finish(t, program("cascade"), "trace", "synth", "--requests", "200", "-o", made); status != 0 {
		t.Fatal(said)
	}
	cmd, out := watch(t, "trace", "record", "-o", recorded, "--json", "--socket", r.socket)
	until(t, "a recorder", func() bool { return strings.Contains(out.String(), "recording") })
	if status, _, said := finish(t, program("cascade"), "trace", "replay", "--trace", made, "--block-bytes", "1KiB", "--socket", r.socket); status != 0 {
		t.Fatal(said)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("an interrupted recording ends with %v, want success", err)
	}
	var sum struct {
		File     string `json:"file"`
		Requests int    `json:"requests"`
		Dropped  int    `json:"dropped_commands"`
	}
	_, text, _ := strings.Cut(out.String(), "\n")
	if err := json.Unmarshal([]byte(text), &sum); err != nil || sum.Requests != 200 || sum.Dropped != 0 || sum.File != recorded {
		t.Errorf("%+v, %v in %s", sum, err, out.String())
	}
	type figures struct {
		Requests, Blocks int
		Unique           int     `json:"unique_blocks"`
		Hits             float64 `json:"hit_ratio_blocks"`
		Reparented       int
	}
	var both [2]figures
	for i, file := range []string{made, recorded} {
		status, text, said := finish(t, program("cascade"), "trace", "stats", "--trace", file, "--json")
		if err := json.Unmarshal([]byte(text), &both[i]); err != nil || status != 0 || i == 1 && strings.Contains(said, "assumed") {
			t.Fatalf("%v, %d: %s", err, status, said)
		}
	}
	if both[0] != both[1] || both[0].Hits == 0 {
		t.Errorf("made %+v, recorded %+v", both[0], both[1])
	}
	if status, _, said := finish(t, program("cascade"), "trace", "sort", "--trace", recorded, "-o", filepath.Join(dir, "sorted.jsonl")); status != 0 {
		t.Error(said)
	}
}
