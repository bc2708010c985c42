package main

import (
	"encoding/json"
	"strings"
	"testing"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/tiers"
)

// TestJudgeKeys has for each way in which keys may not meet the statistics that
// show it, and beside it those that look alike and are in order.
func TestJudgeKeys(t *testing.T) {
	type spaces = []cascade.NamespaceStats
	const sglang = "engine=sglang,form=mha,kv_cache_dtype=auto,model=m,pool=kv,tp="
	for name, c := range map[string]struct {
		in   rankStats
		want []string // in the finding or the remedy; none: all is well
		note string   // in the finding then
	}{
		"nothing yet":              {},
		"a few puts, no look":      {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Puts: 999}}}}},
		"many puts, no look":       {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Puts: 600}, {Name: "b", Puts: 400}}}}, want: []string{"1000 puts, and nobody", "prefix caching"}},
		"many puts, looks in one":  {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Puts: 6000}, {Name: "b", Lookups: 1}}}}},
		"a first run":              {in: rankStats{Stats: cascade.Stats{Puts: 5000, Lookups: 5000, Namespaces: spaces{{Name: "a", Puts: 5000, Aliases: 499, Lookups: 5000}}}}, note: "right for a first run"},
		"the same under new keys":  {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "ok", Puts: 5000, Found: 9, Lookups: 9}, {Name: "a", Puts: 5000, Aliases: 500, Lookups: 100, Found: 9}}}}, want: []string{`"a" 500 had bytes`, "PYTHONHASHSEED", "hash algorithm"}},
		"the same, but found":      {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Puts: 5000, Aliases: 4999, Lookups: 100, Found: 10}}}}},
		"the same, few looks":      {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Puts: 5000, Aliases: 4999, Lookups: 99}}}}},
		"another field":            {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: sglang + "0of1", Names: 3000, Lookups: 100}, {Name: sglang + "0of2", Names: 1000}}}}, want: []string{`differ in tp ("0of1", "0of2")`}},
		"two fields, one missing":  {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "dtype=f,engine=e,salt=s", Lookups: 100}, {Name: "dtype=b,engine=e", Names: 1000}}}}, want: []string{`dtype ("f", "b"), salt ("s", "")`}},
		"another part of a group":  {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: sglang + "0of2", Lookups: 100}, {Name: sglang + "1of2", Names: 1000}}}}},
		"another pool":             {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "engine=e,pool=kv", Lookups: 100}, {Name: "engine=e,pool=draft", Names: 1000}}}}},
		"another model":            {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "dtype=f,engine=e,model=m", Lookups: 100}, {Name: "dtype=b,engine=e,model=n", Names: 1000}}}}},
		"another, which is used":   {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: sglang + "0of1", Lookups: 100}, {Name: sglang + "0of2", Names: 1000, Found: 1, Lookups: 1}}}}},
		"another, but found":       {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: sglang + "0of1", Lookups: 100, Hits: 2}, {Name: sglang + "0of2", Names: 1000}}}}},
		"names that are cut":       {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "dtype=f,engine=e,model=m~01", Lookups: 100}, {Name: "dtype=b,engine=e,model=m~02", Names: 1000}}}}, want: []string{`dtype ("f", "b")`}},
		"another database":         {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "redis/1", Misses: 100}, {Name: "redis/0", Names: 1000}}}}, want: []string{"number of the Redis database"}},
		"names of somebody's own":  {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "mine", Misses: 100}, {Name: "yours", Names: 1000}}}}},
		"an earlier run's":         {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Recovered: 1000, Lookups: 1000, Found: 9}}}}, want: []string{"1000 names of \"a\" are from before", "PYTHONHASHSEED"}},
		"an earlier run's, met":    {in: rankStats{Stats: cascade.Stats{Namespaces: spaces{{Name: "a", Recovered: 1000, Lookups: 1000, Found: 10}}}}},
		"another job's":            {in: rankStats{Stats: cascade.Stats{Catalogue: &tiers.CatalogueState{Entries: 1000, Misses: 100}}}, want: []string{"other ranks and jobs", "page size"}},
		"another job's, met":       {in: rankStats{Stats: cascade.Stats{Catalogue: &tiers.CatalogueState{Entries: 1000, Misses: 100, Hits: 1}}}},
		"another job's, own found": {in: rankStats{Stats: cascade.Stats{Found: 1, Catalogue: &tiers.CatalogueState{Entries: 1000, Misses: 100}}}},
	} {
		got := judgeKeys(c.in)
		all := got.finding + ": " + got.remedy
		if (got.remedy == "") != (c.want == nil) || !strings.Contains(got.finding, c.note) {
			t.Errorf("%s: %s", name, all)
		}
		for _, want := range c.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no %q in %s", name, want, all)
			}
		}
	}
}

// TestJudgeKeysOfAllRanks: who looks and who stores may be on different nodes.
func TestJudgeKeysOfAllRanks(t *testing.T) {
	report := func(n cascade.NamespaceStats) dht.RankStatus {
		text, err := json.Marshal(cascade.Stats{Namespaces: []cascade.NamespaceStats{n}})
		if err != nil {
			t.Fatal(err)
		}
		return dht.RankStatus{Report: text}
	}
	looks, stores := cascade.NamespaceStats{Name: "redis/1", Misses: 60}, cascade.NamespaceStats{Name: "redis/0", Names: 600}
	s := rankStats{ranks: []dht.RankStatus{report(looks), report(stores), report(looks), report(stores), {Error: "away"}}}
	if got := judgeKeys(s); !strings.Contains(got.finding, `120 names were looked for in "redis/1"`) || !strings.Contains(got.finding, `"redis/0", which has 1200`) {
		t.Errorf("%+v", got)
	}
}
