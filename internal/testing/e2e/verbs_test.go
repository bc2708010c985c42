package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerbsSpeakJSON runs every verb against a rank with --json: standard
// output is one JSON value with the fields that scripts read, and nothing else.
func TestVerbsSpeakJSON(t *testing.T) {
	r := start(t, newPlace(t, "64MiB").withLustre())
	dir := t.TempDir()
	value, trace, conf := filepath.Join(dir, "value"), filepath.Join(dir, "trace.jsonl"), filepath.Join(dir, "rank.toml")
	for file, text := range map[string]string{value: "some bytes", conf: "shm.bytes = \"64MiB\"\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := []string{"--socket", r.socket}
	for _, step := range []struct {
		args   []string
		at     []string
		status int
		fields string
	}{
		{[]string{"version"}, nil, 0, "version go platform"},
		{[]string{"put", "--key", "k", value}, at, 0, "id bytes"},
		{[]string{"get", "k", "-o", value + ".back"}, at, 0, "id bytes"},
		{[]string{"probe", "k"}, at, 0, "hits"},
		{[]string{"probe", "none"}, at, 3, "hits"},
		{[]string{"put", "--key", "k2", "--namespace", "other", value}, at, 0, "id bytes"},
		{[]string{"keys", "--namespace", "other"}, at, 0, "namespace keys"},
		{[]string{"list", "--namespace", "oth*"}, at, 0, "namespaces"},
		{[]string{"clear", "--namespace", "oth*"}, at, 0, "cleared namespaces"},
		{[]string{"probe", "--namespace", "other", "k2"}, at, 0, "hits"},
		{[]string{"clear", "--namespace", "oth*", "--yes"}, at, 0, "cleared namespaces"},
		{[]string{"probe", "--namespace", "other", "k2"}, at, 3, "hits"},
		{[]string{"status"}, at, 0, "names blocks tiers namespaces version uptime_seconds"},
		{[]string{"config", "show"}, nil, 0, "shm.bytes socket lustre.dir"},
		{[]string{"config", "show", "--origin"}, nil, 0, "shm.bytes"},
		{[]string{"config", "check", conf}, nil, 0, "ok files"},
		{[]string{"doctor", "--config", conf}, at, -1, "ok checks"}, // this machine may be ill
		{[]string{"trace", "synth", "-o", trace, "--requests", "80"}, nil, 0, "file requests"},
		{[]string{"trace", "info", "--trace", trace}, nil, 0, "requests blocks unique_blocks hit_ratio_blocks"},
		{[]string{"trace", "replay", "--trace", trace, "--limit", "50", "--block-bytes", "4KiB"}, nil, 0,
			"requests blocks hit_ratio_blocks hit_ratio_tokens dedup_ratio store_dedup_ratio wrong_bytes tiers"},
		{[]string{"trace", "replay", "--trace", trace, "--limit", "50", "--block-bytes", "4KiB"}, at, 0, "requests wrong_bytes tiers"},
		{[]string{"bench", "put", "--size", "256KiB", "--rounds", "1", "--time", "5ms"}, nil, 0, "ratio_hash"},
		{[]string{"bench", "cold", "--blocks", "1024", "--samples", "3"}, nil, 0, "heap_bytes_per_block start_seconds probe_us get_us"},
		{[]string{"bench", "stages", "--requests", "4", "--blocks", "8", "--warm", "8", "--rounds", "1", "--no-pause"}, nil, 0, "total stages ratios_by_round"},
	} {
		t.Run(strings.Join(step.args[:min(2, len(step.args))], " "), func(t *testing.T) {
			status, out, said := finish(t, program("cascade"), append(append(step.args, "--json"), step.at...)...)
			if status != step.status && step.status >= 0 {
				t.Errorf("exit status %d, want %d: %s", status, step.status, tailOf(said))
			}
			var got map[string]json.RawMessage
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v in %s", err, tailOf(out))
			}
			for field := range strings.FieldsSeq(step.fields) {
				if _, ok := got[field]; !ok {
					t.Errorf("no field %q in %s", field, tailOf(out))
				}
			}
		})
	}
	if back, err := os.ReadFile(value + ".back"); err != nil || string(back) != "some bytes" {
		t.Errorf("get wrote %q, %v", back, err)
	}
}

// TestVerbsForPeople checks what the same verbs print without --json.
func TestVerbsForPeople(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	conf := filepath.Join(t.TempDir(), "rank.toml")
	if err := os.WriteFile(conf, []byte("shm.byte = \"64MiB\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		status int
		words  []string // in what it prints, on either stream
	}{
		"status":          {[]string{"status", "--socket", r.socket}, 0, []string{"TIER", "shm", "prefix"}},
		"doctor":          {[]string{"doctor", "--socket", r.socket}, -1, []string{"shared memory", "rank", "answers"}},
		"doctor, no rank": {[]string{"doctor", "--socket", r.socket + "x"}, -1, []string{"none answers", "cascaded --socket"}},
		"origin":          {[]string{"config", "show", "--origin"}, 0, []string{"shm.bytes", "# built-in"}},
		"bad file":        {[]string{"config", "check", conf}, 1, []string{"rank.toml:1", `did you mean "shm.bytes"`}},
		"bash":            {[]string{"completion", "bash"}, 0, []string{"__start_cascade"}},
		"zsh":             {[]string{"completion", "zsh"}, 0, []string{"#compdef cascade"}},
		"fish":            {[]string{"completion", "fish"}, 0, []string{"complete -c cascade"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, said := finish(t, program("cascade"), tc.args...)
			if status != tc.status && tc.status >= 0 {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			wantWords(t, out+said, tc.words...)
		})
	}
}

// TestStatusWatches interrupts a watch that has shown the rank twice.
func TestStatusWatches(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	cmd, out := watch(t, "status", "--watch=20ms", "--json", "--socket", r.socket)
	until(t, "second snapshot", func() bool { return strings.Count(out.String(), "\n") >= 2 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("an interrupted watch ends with %v, want success", err)
	}
	for line := range strings.Lines(out.String()) {
		var snapshot map[string]any
		if err := json.Unmarshal([]byte(line), &snapshot); err != nil {
			t.Errorf("%v in %q", err, line)
		}
	}
}
