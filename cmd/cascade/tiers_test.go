package main

import (
	"encoding/json"
	"strings"
	"testing"

	"cascadekv/internal/preflight"
)

// unwell are the statistics of a rank whose cold tier is as it should be but for
// what its health, its merges and its striping say.
func unwell(more string) string {
	return `{"tiers":[{"name":"shm"},{"name":"lustre"` + more + `}]}`
}

const readOnly = `,"health":{"read_only":true}`

func TestStatusTellsOfTheColdTier(t *testing.T) {
	for name, c := range map[string]struct {
		stats    string
		out, err []string
	}{
		"read-only": {readOnly, nil, []string{"tier lustre: it is read-only", "raise the quota"}},
		"hanging":   {`,"health":{"hanging":3}`, nil, []string{"3 operations hang", "ask the administrators"}},
		"merged": {`,"merged":{"merges":2,"segments":12,"blocks":900,"bytes":1048576,"written_bytes":1048576,"removed_bytes":5242880}`,
			[]string{"lustre merged 12 segments: 900 blocks (1.00 MiB) were moved, freed 4.00 MiB"}, nil},
		"merged in vain": {`,"merged":{"merges":1,"blocks":9,"bytes":1024,"written_bytes":2048}`, []string{"freed nothing yet"}, nil},
		"well":           {`,"health":{"poisoned_total":4},"merged":{}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			socket := startRank(t, &fakeRank{stats: unwell(c.stats)})
			got := cascadeCommand("", nil, "status", "--socket", socket)
			for _, part := range c.out {
				if !strings.Contains(got.out, part) {
					t.Errorf("%s does not say %q", got.out, part)
				}
			}
			for _, part := range c.err {
				if !strings.Contains(got.err, part) {
					t.Errorf("%q does not say %q", got.err, part)
				}
			}
			if c.err == nil && got.err != "" || c.out == nil && strings.Contains(got.out, "merged") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestDoctorTellsOfTheColdTier(t *testing.T) {
	for name, c := range map[string]struct {
		stats   string
		check   string
		verdict preflight.Verdict
		want    []string
	}{
		"read-only":  {readOnly, "tier lustre", preflight.Warn, []string{"read-only", "raise the quota"}},
		"writes":     {`,"health":{"writes_broken":true}`, "tier lustre", preflight.Warn, []string{"writes are refused: true"}},
		"corrupt":    {`,"health":{"read_errors":{"corrupt_total":3}}`, "tier lustre", preflight.Warn, []string{"3 reads found other bytes", "fsck"}},
		"gone":       {`,"health":{"read_errors":{"gone_total":3,"unanswered_total":4,"failed_total":5}}`, "tier lustre", preflight.Warn, []string{"3 of what is gone, 4 not answered, 5 with an error"}},
		"poisoned":   {`,"health":{"poisoned_total":2}`, "tier lustre", preflight.Warn, []string{"after a failed write: 2"}},
		"striped":    {`,"striping":{"asked":"-c 2","granted":"-c 2 -S 4M"}`, "striping", preflight.OK, []string{"-c 2 -S 4M", "asked for -c 2"}},
		"few OSTs":   {`,"striping":{"asked":"-c 16","granted":"-c 2","differences":["2 stripes instead of 16"]}`, "striping", preflight.Warn, []string{"2 stripes instead of 16", "plan --try"}},
		"no striper": {`,"striping":{"asked":"-c 16","granted":"","error":"no such luck"}`, "striping", preflight.Warn, []string{"no such luck"}},
		"well":       {`,"health":{},"merged":{}`, "tier lustre", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			socket := startRank(t, &fakeRank{stats: unwell(c.stats)})
			got := cascadeCommand("", nil, "doctor", "--json", "--socket", socket)
			var report struct{ Checks []check }
			if err := json.Unmarshal([]byte(got.out), &report); err != nil {
				t.Fatalf("%v in %+v", err, got)
			}
			var found check
			for _, one := range report.Checks {
				if one.Name == c.check {
					found = one
				}
			}
			if found.Verdict != c.verdict {
				t.Errorf("%+v, want %q", found, c.verdict)
			}
			for _, part := range c.want {
				if !strings.Contains(found.Detail+" "+found.Remedy, part) {
					t.Errorf("%+v does not say %q", found, part)
				}
			}
		})
	}
}
