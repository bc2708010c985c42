package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/resp"
)

// TestDoctorSaysWhyNothingIsFound plays engines against a rank, which run the
// same prompts twice: with other keys, as under another hash seed; with names in
// another namespace; and as they should. Each stores what it did not find.
func TestDoctorSaysWhyNothingIsFound(t *testing.T) {
	const tp = "dtype=bfloat16,engine=vllm,model=m,tp="
	once := engineRun{"a", "1", 1}
	for name, c := range map[string]struct {
		runs    []engineRun
		restart bool // of the rank, between the runs
		verdict string
		words   []string
	}{
		"a first run":    {[]engineRun{once}, false, "ok", []string{"of 1200 names looked for 0 were there", "right for a first run"}},
		"all in order":   {[]engineRun{once, once}, false, "ok", []string{"of 2400 names looked for 1200 were there"}},
		"in order later": {[]engineRun{once, once}, true, "ok", []string{"of 1200 names looked for 1200 were there"}},
		"other keys": {[]engineRun{once, {"a", "2", 1}}, false, "warn",
			[]string{`of 2400 puts in "a" 1200 had bytes that another key has`, "of 2400 names looked for 0 were there", "PYTHONHASHSEED"}},
		"other keys later": {[]engineRun{once, {"a", "2", 1}}, true, "warn", []string{`of 1200 puts in "a" 1200 had bytes`, "PYTHONHASHSEED"}},
		"other keys and bytes later": {[]engineRun{once, {"a", "2", 2}}, true, "warn",
			[]string{`1200 names of "a" are from before this rank started, and of 1200 looked for 0 were there`, "PYTHONHASHSEED"}},
		"another namespace later": {[]engineRun{{tp + "1", "1", 1}, {tp + "2", "1", 1}}, true, "warn",
			[]string{`nobody looks in "` + tp + `1", which has 1200`, `differ in tp ("2", "1")`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "64MiB")
			r := start(t, p)
			for i, run := range c.runs {
				if i > 0 && c.restart {
					r.signal(t, syscall.SIGTERM)
					if status := r.status(t); status != 0 {
						t.Fatalf("exit status %d", status)
					}
					r = start(t, p)
				}
				run.serve(t, r.dial(t))
			}
			verdict, said := doctorOfHits(t, r)
			if verdict != c.verdict {
				t.Errorf("%s: %s", verdict, said)
			}
			wantWords(t, said, c.words...)
		})
	}
}

// engineRun is one run of an engine: the same prompts each time.
type engineRun struct {
	namespace, seed string
	bytes           int // equal: the same for each block
}

func (e engineRun) serve(t *testing.T, client *resp.Client) {
	t.Helper()
	for i := range 1200 {
		key := fmt.Sprint(e.seed, "/", i)
		found, err := client.Do("CASCADE.PROBE", e.namespace, key)
		if err != nil {
			t.Fatal(err)
		}
		if found.Field("hits").Int == 1 {
			continue
		}
		if _, err := client.Do("CASCADE.PUT", key, string(bytesOf(fmt.Sprint(e.bytes, "/", i), 5000)), "NS", e.namespace); err != nil {
			t.Fatal(err)
		}
	}
}

// doctorOfHits is what the doctor says of hits, and what it tells to do.
func doctorOfHits(t *testing.T, r *rank) (verdict, said string) {
	t.Helper()
	_, out, _ := finish(t, program("cascade"), "doctor", "--json", "--socket", r.socket)
	var report struct {
		Checks []struct{ Name, Verdict, Detail, Remedy string } `json:"checks"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %s", err, tailOf(out))
	}
	for _, c := range report.Checks {
		if c.Name == "hits" {
			return c.Verdict, strings.Join([]string{c.Detail, c.Remedy}, "; ")
		}
	}
	t.Fatalf("nothing of hits in %s", tailOf(out))
	return "", ""
}
