package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// metricsOf are the figures of a rank whose names begin so, which is cut off.
func metricsOf(t *testing.T, admin, begin string) map[string]float64 {
	t.Helper()
	answer, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), begin)
		if !ok {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if all[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			t.Errorf("%s%s: %v", begin, line, err)
		}
	}
	return all
}

// TestIndexCountsWhatClientsAsk: what the index is shaped for is what clients ask
// for, each search once, and nothing of what a rank does by itself. Names that
// memory has are no work of the index.
func TestIndexCountsWhatClientsAsk(t *testing.T) {
	const blocks = 8
	p := newPlace(t, "32MiB").withLustre()
	r := start(t, p)
	c := r.dial(t)
	key := func(i int) string { return fmt.Sprint("chain-", i) }
	for i := range blocks {
		args := []string{"CASCADE.PUT", key(i), string(content(key(i), 1, 4096)), "NS", "model"}
		if i > 0 {
			args = append(args, "PARENT", key(i-1))
		}
		if _, err := c.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"one", "two"} {
		if _, err := c.Do("CASCADE.PUT", k, "value of "+k, "NS", "model"); err != nil {
			t.Fatal(err)
		}
	}
	end(t, r)

	p = newPlace(t, "32MiB")
	p.lustre = r.lustre
	admin := freePort(t)
	r = start(t, p, "--rank", "9", "--admin-listen", admin, "--lustre-index-tuning", "auto")
	c = r.dial(t)
	counts := func() map[string]float64 {
		all := metricsOf(t, admin, "cascade_index_")
		return map[string]float64{
			"point": all[`searches_total{kind="point"}`], "range": all[`searches_total{kind="range"}`], "absent": all[`searches_total{kind="absent"}`],
			"scanned": all["scanned_total"], "hits": all["hits_total"], "misses": all["misses_total"],
		}
	}
	want := map[string]float64{"point": 0, "range": 0, "absent": 0, "scanned": 0, "hits": 0, "misses": 0}
	if got := counts(); !maps.Equal(got, want) {
		t.Fatalf("before anybody asked: %v", got)
	}
	chain := []string{"CASCADE.PROBE", "model"}
	for i := range blocks {
		chain = append(chain, key(i))
	}
	for _, step := range []struct {
		what string
		args []string
		adds map[string]float64
	}{
		{"a name", []string{"CASCADE.GET", "NS", "model", "one"}, map[string]float64{"point": 1, "hits": 1}},
		{"it again, from memory", []string{"CASCADE.GET", "NS", "model", "one"}, nil},
		{"no name", []string{"CASCADE.GET", "NS", "model", "none"}, map[string]float64{"absent": 1, "misses": 1}},
		{"a chain that ends", append(chain, "none", "nor this"), map[string]float64{"range": 1, "scanned": blocks, "absent": 2, "hits": blocks, "misses": 2}},
		{"a look at one name", []string{"CASCADE.PROBE", "model", "two"}, map[string]float64{"point": 1, "hits": 1}},
	} {
		if _, err := c.Do(step.args...); err != nil {
			t.Fatal(step.what, err)
		}
		for k, n := range step.adds {
			want[k] += n
		}
		if got := counts(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", step.what, got, want)
		}
	}
	// The tuner counts them every ten seconds.
	var all map[string]float64
	until(t, "tuner that saw two hits, a range and three misses", func() bool {
		all = metricsOf(t, admin, "cascade_index_tuner_")
		for kind, of6 := range map[string]float64{"put": 0, "hit": 2, "range": 1, "miss": 3} {
			if share, ok := all[`mix{kind="`+kind+`"}`]; !ok || share < of6/6-1e-9 || share > of6/6+1e-9 {
				return false
			}
		}
		return true
	})
	if all[`verdicts_total{verdict="filling"}`] == 0 || len(all) != 4+2+7 {
		t.Errorf("the tuner's metrics: %v", all)
	}
	if now, best := all[`cost_pages{shape="current"}`], all[`cost_pages{shape="best"}`]; best <= 0 || best > now {
		t.Errorf("costs %v, at best %v", now, best)
	}
}
