package main

import (
	"encoding/json"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/preflight"
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
