package main

import (
	"encoding/json"
	"strings"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/preflight"
	"cascadekv/internal/units"
)

func TestDoctorVerb(t *testing.T) {
	f := &fakeRank{stats: `{"puts":5000,"corrupt":1,"namespaces":[{"name":"a","puts":5000}],"tiers":[{"name":"lustre","errors":4}]}`}
	socket := startRank(t, f)
	got := cascadeCommand("", nil, "doctor", "--json", "--socket", socket)
	var report struct {
		OK     bool    `json:"ok"`
		Checks []check `json:"checks"`
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	verdicts := map[string]preflight.Verdict{}
	for _, c := range report.Checks {
		verdicts[c.Name] = c.Verdict
	}
	for name, want := range map[string]preflight.Verdict{"rank": preflight.OK, "hits": preflight.Warn, "losses": preflight.Warn, "tier lustre": preflight.Warn} {
		if verdicts[name] != want {
			t.Errorf("%s is %q, want %q", name, verdicts[name], want)
		}
	}
	if report.OK != (got.status == cli.OK) {
		t.Errorf("ok is %v, exit status %d", report.OK, got.status)
	}
}

// TestDoctorJudgesTheRanksConfiguration: not that which a rank would have that is started where the verb runs.
func TestDoctorJudgesTheRanksConfiguration(t *testing.T) {
	c := config.Default()
	c.Lustre.Dir, c.Lustre.SegmentBytes, c.Shm.Bytes = t.TempDir(), units.MiB, 64*units.MiB // a file system with little room will do
	for name, tc := range map[string]struct {
		texts map[string]string
		want  []string
	}{
		"its own": {c.Texts(), []string{"ok    configuration", "the running rank; ", "lustre.dir", "shm.bytes is 64MiB", c.Lustre.Dir + " is writable"}},
		"with keys of a later version": {func() map[string]string {
			texts := c.Texts()
			texts["new.key"] = "7"
			return texts
		}(), []string{"ok    configuration", "shm.bytes is 64MiB"}},
		"that cannot be read": {map[string]string{"shm.bytes": "seven"}, []string{"warn  configuration", "rank's version", "lustre          none configured"}},
		"of a rank of before": {nil, []string{"warn  configuration", "upgrade the rank", "lustre          none configured"}},
	} {
		t.Run(name, func(t *testing.T) {
			socket := startRank(t, &fakeRank{stats: "{}", config: tc.texts})
			got := cascadeCommand("", nil, "doctor", "--socket", socket)
			for _, want := range tc.want {
				if !strings.Contains(got.out, want) {
					t.Errorf("no %q in\n%s%s", want, got.out, got.err)
				}
			}
		})
	}
}
