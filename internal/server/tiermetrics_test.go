package server

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"cascadekv/cascade"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// unwell is a cold tier that tells of much trouble.
type unwell struct {
	*lustre.Tier
	told atomic.Pointer[told]
}

type told struct {
	health   tiers.Health
	merged   tiers.Merged
	striping tiers.Striping
}

func (u *unwell) Stats() tiers.Stats {
	t := u.told.Load()
	st := u.Tier.Stats()
	st.Health, st.Merged, st.Striping = &t.health, &t.merged, &t.striping
	return st
}

// TestColdTierIsExported: each figure that the cold tier tells has its place in
// /metrics and in the answer to CASCADE.STATS.
func TestColdTierIsExported(t *testing.T) {
	tier, err := lustre.Open(lustre.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	u, trouble := &unwell{Tier: tier}, told{
		health: tiers.Health{Hanging: 2, Files: 3, Writes: true, Breaks: 5, Refused: 6, ReadOnly: true, Poisoned: 7,
			Reads: tiers.ReadErrors{Corrupt: 8, Gone: 9, Unanswered: 10, Failed: 11}},
		merged:   tiers.Merged{Merges: 12, Segments: 13, Blocks: 14, Bytes: 15, Written: 16, Removed: 17},
		striping: tiers.Striping{Asked: "-c 16", Granted: "-c 2 -p \xff", Differences: []string{"2 stripes instead of 16"}},
	}
	u.told.Store(&trouble)
	r := newRigOver(t, 8<<20, u)
	page := func() string {
		w := httptest.NewRecorder()
		r.srv.http.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	text := page()
	doc, err := os.ReadFile("../../docs/lustre.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"hanging": "2", "broken_files": "3", "writes_broken": "1", "breaks_total": "5", "refusals_total": "6", "read_only": "1", "poisoned_total": "7",
		"merges_total": "12", "merge_segments_total": "13", "merge_blocks_total": "14", "merge_bytes_total": "15",
		"merge_written_bytes_total": "16", "merge_removed_bytes_total": "17", "striping_as_asked": "0",
	} {
		if line := "\ncascade_tier_" + name + `{tier="lustre"} ` + value + "\n"; !strings.Contains(text, line) {
			t.Errorf("/metrics has no %q", line)
		}
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/lustre.md does not tell of %s", name)
		}
	}
	for kind, value := range map[string]string{"corrupt": "8", "gone": "9", "unanswered": "10", "failed": "11"} {
		if line := "\n" + `cascade_tier_read_errors_total{kind="` + kind + `",tier="lustre"} ` + value + "\n"; !strings.Contains(text, line) {
			t.Errorf("/metrics has no %q", line)
		}
		if !strings.Contains(string(doc), `{kind="`+kind+`"}`) || !strings.Contains(string(doc), kind+"_total") {
			t.Errorf("docs/lustre.md does not tell of reads that are %s", kind)
		}
	}
	if line := "\n" + `cascade_tier_striping_info{asked="-c 16",granted="-c 2 -p ?",tier="lustre"} 1` + "\n"; !strings.Contains(text, line) {
		t.Errorf("/metrics has no %q", line)
	}

	reply, err := r.client("unix").Do("CASCADE.STATS")
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Tiers []cascade.TierStats }
	if err := json.Unmarshal(reply.Str, &said); err != nil {
		t.Fatal(err)
	}
	striping := trouble.striping
	striping.Granted = "-c 2 -p \ufffd" // as JSON has it
	cold := said.Tiers[len(said.Tiers)-1]
	if !reflect.DeepEqual(cold.Health, &trouble.health) || !reflect.DeepEqual(cold.Merged, &trouble.merged) || !reflect.DeepEqual(cold.Striping, &striping) {
		t.Errorf("%s", reply.Str)
	}

	u.told.Store(&told{})
	text = page()
	for _, line := range []string{`writes_broken{tier="lustre"} 0`, `read_only{tier="lustre"} 0`, `striping_as_asked{tier="lustre"} 1`} {
		if !strings.Contains(text, "\ncascade_tier_"+line+"\n") {
			t.Errorf("/metrics has no %s of a tier that is well", line)
		}
	}
}
