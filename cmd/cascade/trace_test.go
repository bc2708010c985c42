package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/trace"
)

// writeTrace writes a file for a test and returns its path.
func writeTrace(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLengthsOnly: a trace without hash ids is summarised as far as it goes, and
// what needs reuse refuses it and says why.
func TestLengthsOnly(t *testing.T) {
	file := writeTrace(t, "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,700,2\n2024-05-12 00:00:09,300,3\n")
	got := cascadeCommand("", nil, "trace", "info", "--trace", file, "--json")
	var info trace.Info
	if err := json.Unmarshal([]byte(got.out), &info); err != nil || info.InputTokens != 1000 || info.Milliseconds != 9000 || info.Assumed.LengthsOnly != 2 {
		t.Errorf("%+v, %v in %+v", info, err, got)
	}
	if got := cascadeCommand("", nil, "trace", "info", "--trace", file); got.status != cli.OK || !strings.Contains(got.out, "not known: the trace has lengths only") {
		t.Errorf("info: %+v", got)
	}
	for _, verb := range [][]string{{"replay", "--block-bytes", "1KiB", "--no-lustre"}, {"stats"}, {"sort"}} {
		got := cascadeCommand("", nil, append([]string{"trace", verb[0], "--trace", file}, verb[1:]...)...)
		if got.status != cli.Failure || !strings.Contains(got.err, "form azure") || !strings.Contains(got.err, "lengths only, no hash ids") {
			t.Errorf("%s: %+v", verb[0], got)
		}
	}
}

// TestStats: the figures of a made trace, as a table, as JSON and as a page.
func TestStats(t *testing.T) {
	dir := t.TempDir()
	file, html := filepath.Join(dir, "t.jsonl.gz"), filepath.Join(dir, "t.html")
	if got := cascadeCommand("", nil, "trace", "synth", "--hints", "--requests", "300", "-o", file); got.status != cli.OK {
		t.Fatalf("%+v", got)
	}
	got := cascadeCommand("", nil, "trace", "stats", "--trace", file, "--html", html)
	page, err := os.ReadFile(html)
	if got.status != cli.OK || !strings.Contains(got.out, "touched once") || !strings.Contains(got.out, "sessions") || err != nil || !strings.Contains(string(page), "<svg") {
		t.Errorf("%+v, %v", got, err)
	}
	var s struct {
		Requests int     `json:"requests"`
		Dedup    float64 `json:"dedup_ratio"`
		Distance struct {
			P50 int64 `json:"p50"`
		} `json:"reuse_distance"`
		Windows []struct {
			Blocks int64 `json:"blocks"`
		} `json:"windows"`
		Sessions struct {
			Requests int `json:"requests"`
		} `json:"sessions"`
	}
	got = cascadeCommand("", nil, "trace", "stats", "--trace", file, "--json", "--window", "10s")
	if err := json.Unmarshal([]byte(got.out), &s); err != nil || s.Requests != 300 || s.Dedup <= 1 || s.Distance.P50 == 0 || len(s.Windows) < 2 || s.Sessions.Requests != 300 {
		t.Errorf("%+v, %v in %s", s, err, got.out)
	}
	if got := cascadeCommand("", nil, "trace", "stats", "--trace", file, "--window", "1us"); got.status != cli.Usage {
		t.Errorf("a window of a microsecond: %+v", got)
	}
}

// TestSort: sessions written one after the other become one trace in order of
// time, of whole prompts.
func TestSort(t *testing.T) {
	file := writeTrace(t, "aiperf.jsonl", `{"session_id":"a","input_length":600,"output_length":100,"hash_ids":[1,2],"timestamp":10.0,"group_id":3}
{"session_id":"a","input_length":400,"output_length":5,"hash_ids":[7],"delay":20.0}
{"session_id":"b","input_length":512,"output_length":5,"hash_ids":[1],"timestamp":15.0,"group_id":4}
`)
	output := filepath.Join(t.TempDir(), "sorted.jsonl")
	got := cascadeCommand("", nil, "trace", "sort", "--trace", file, "-o", output, "--json")
	if got.status != cli.OK || !strings.Contains(got.out, `"requests": 3`) || !strings.Contains(got.err, "1 lines have a turn's new tokens only") {
		t.Errorf("%+v", got)
	}
	r, err := trace.Open(output, trace.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, want := range []struct {
		at     int64
		tokens int
		name   string
		second uint64 // id of the second block, 0 for any or none
	}{{10, 600, "a", 2}, {15, 512, "b", 0}, {30, 1100, "a", 0}} {
		var req trace.Request
		err := r.Next(&req)
		if err != nil || req.Timestamp != want.at || req.InputTokens != want.tokens || req.Session != want.name ||
			req.Hashes[0] != 1 || want.second > 0 && req.Hashes[1] != want.second {
			t.Errorf("%+v, %v, want %+v", req, err, want)
		}
	}
	if r.Form() != trace.Mooncake || r.Assumed() != (trace.Assumed{}) {
		t.Errorf("the sorted trace is in form %s and leaves open %s", r.Form(), r.Assumed())
	}
}

// TestFromText: conversations become a trace, and several rates a file each,
// whose requests differ in time only.
func TestFromText(t *testing.T) {
	text := writeTrace(t, "talk.json", `[{"id": "a", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."},
		{"from": "human", "value": "Really?"}, {"from": "gpt", "value": "Yes."}]}, {"id": "b", "conversations": []}]`)
	got := cascadeCommand("", nil, "trace", "from-text", text)
	if got.status != cli.OK || strings.Count(got.out, `"session_id": "a"`) != 2 || !strings.Contains(got.err, "passed over 1 conversations") {
		t.Errorf("%+v", got)
	}
	dir := t.TempDir()
	got = cascadeCommand("", nil, "trace", "from-text", "--preset", "leval", "--rps", "0.5,2", "--requests", "50", "-o", filepath.Join(dir, "leval.jsonl.gz"), "--json")
	if got.status != cli.OK || strings.Count(got.out, `"requests": 50`) != 2 {
		t.Errorf("%+v", got)
	}
	var infos [2]trace.Info
	for i, rate := range []string{"0.5", "2"} {
		got := cascadeCommand("", nil, "trace", "info", "--json", "--trace", filepath.Join(dir, "leval-rps"+rate+".jsonl.gz"))
		if err := json.Unmarshal([]byte(got.out), &infos[i]); err != nil {
			t.Fatal(err, got)
		}
	}
	if ratio := float64(infos[0].Milliseconds) / float64(infos[1].Milliseconds); ratio < 3.9 || ratio > 4.1 || infos[0].InputTokens != infos[1].InputTokens {
		t.Errorf("%+v and %+v", infos[0], infos[1])
	}
	for want, args := range map[string][]string{
		"--preset":               {},
		"name either":            {text, "--preset", "leval"},
		"-o FILE":                {text, "--rps", "1,2"},
		"--rps must be above 0":  {text, "--rps", "0"},
		"choose 0.001 to 10000":  {text, "--rps", "-1"},
		"neither poisson":        {text, "--arrivals", "burst"},
		"neither round-robin":    {text, "--order", "x"},
		"no use for a preset":    {"--preset", "leval", "--active", "4"},
		"is none of [leval loog": {"--preset", "squad"},
	} {
		if got := cascadeCommand("", nil, append([]string{"trace", "from-text"}, args...)...); got.status != cli.Usage || !strings.Contains(got.err, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
	bad := writeTrace(t, "bad.json", "{}")
	if got := cascadeCommand("", nil, "trace", "from-text", bad); got.status != cli.Failure || !strings.Contains(got.err, "line 1: record 1 has neither") {
		t.Errorf("%+v", got)
	}
}
