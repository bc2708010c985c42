package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cascadekv/cascade"
)

const (
	// manyPuts and manyAsked are how much of each is enough to judge how the
	// keys of those who store and those who look match.
	manyPuts  = 1000
	manyAsked = 100

	sameKeys = "give every engine the same PYTHONHASHSEED and the same hash algorithm, as cascade engine-config prints them"
)

// keyVerdict is what the statistics say of whether engines find what engines
// stored.
type keyVerdict struct {
	finding string
	remedy  string // "": nothing wrong was found
}

// judgeKeys looks for the commonest misconfiguration: engines that store much
// and never find it.
func judgeKeys(s rankStats) keyVerdict {
	all := everywhere(s)
	for _, judge := range []func([]cascade.NamespaceStats) keyVerdict{judgeAliases, judgeNamespaces, judgeRecovered, judgeSilence} {
		if v := judge(all); v.remedy != "" {
			return v
		}
	}
	if v := judgeCatalogue(s); v.remedy != "" {
		return v
	}
	v := keyVerdict{finding: fmt.Sprintf("%d hits, %d misses; of %d names looked for %d were there", s.Hits, s.Misses, s.Lookups, s.Found)}
	if s.Puts >= manyPuts && s.Hits+s.Found == 0 {
		v.finding += ": right for a first run. If these prompts ran before, their keys were others: " + sameKeys
	}
	return v
}

func asked(n cascade.NamespaceStats) uint64 { return n.Lookups + n.Hits + n.Misses }
func met(n cascade.NamespaceStats) uint64   { return n.Found + n.Hits }

// unmet reports whether much was asked for and, but for less than one in so
// many, nothing found.
func unmet(n cascade.NamespaceStats, in uint64) bool {
	return asked(n) >= manyAsked && met(n)*in < asked(n)
}

// judgeAliases looks for prompts that come again under other keys. That hits
// are few has to be asked besides: tools that measure put the same bytes under
// many keys, and find each of them.
func judgeAliases(all []cascade.NamespaceStats) keyVerdict {
	for _, n := range all {
		if n.Puts >= manyPuts && n.Aliases*10 >= n.Puts && unmet(n, 10) {
			return keyVerdict{
				fmt.Sprintf("the same prompts come under other keys: of %d puts in %q %d had bytes that another key has, and of %d names looked for %d were there",
					n.Puts, n.Name, n.Aliases, asked(n), met(n)), sameKeys,
			}
		}
	}
	return keyVerdict{}
}

// judgeNamespaces looks for engines that look in one namespace for what was
// stored in another one.
func judgeNamespaces(all []cascade.NamespaceStats) keyVerdict {
	for _, in := range all {
		if !unmet(in, 100) {
			continue
		}
		for _, stored := range all {
			if stored.Names < manyPuts || asked(stored) >= manyAsked || met(stored) > 0 {
				continue
			}
			if differ, kin := difference(in.Name, stored.Name); kin {
				return keyVerdict{
					fmt.Sprintf("%d names were looked for in %q and %d were there; nobody looks in %q, which has %d", asked(in), in.Name, met(in), stored.Name, stored.Names),
					"if they are to share, make them equal: they differ in " + differ,
				}
			}
		}
	}
	return keyVerdict{}
}

// judgeRecovered looks for names of an earlier run that nobody finds.
func judgeRecovered(all []cascade.NamespaceStats) keyVerdict {
	for _, n := range all {
		if n.Recovered >= manyPuts && unmet(n, 100) {
			return keyVerdict{
				fmt.Sprintf("%d names of %q are from before this rank started, and of %d looked for %d were there", n.Recovered, n.Name, asked(n), met(n)),
				"if these prompts ran then, " + sameKeys,
			}
		}
	}
	return keyVerdict{}
}

// judgeCatalogue does so for what other ranks and jobs left.
func judgeCatalogue(s rankStats) keyVerdict {
	c := s.Catalogue
	if c == nil || c.Entries < manyPuts || c.Misses < manyAsked || c.Hits*100 >= c.Misses || s.Hits+s.Found > 0 {
		return keyVerdict{}
	}
	return keyVerdict{
		fmt.Sprintf("of %d names looked for in what other ranks and jobs left, %d entries, %d were there", c.Hits+c.Misses, c.Entries, c.Hits),
		"if these prompts ran then, " + sameKeys + ", and compare model, dtype, page size and parallelism with theirs",
	}
}

// judgeSilence looks for engines that only store.
func judgeSilence(all []cascade.NamespaceStats) keyVerdict {
	puts := uint64(0)
	for _, n := range all {
		if asked(n) > 0 {
			return keyVerdict{}
		}
		puts += n.Puts
	}
	if puts < manyPuts {
		return keyVerdict{}
	}
	return keyVerdict{
		fmt.Sprintf("%d puts, and nobody has looked for anything", puts),
		"see that prefix caching is on in the engines, and that some of them read: one whose role is to produce only never looks",
	}
}

// everywhere adds up what the ranks of a job count in each namespace: one may
// have what another is asked for.
func everywhere(s rankStats) []cascade.NamespaceStats {
	parts := [][]cascade.NamespaceStats{}
	for _, r := range s.ranks {
		var report cascade.Stats
		if json.Unmarshal(r.Report, &report) == nil {
			parts = append(parts, report.Namespaces)
		}
	}
	if len(parts) == 0 {
		return s.Namespaces
	}
	sums := map[string]cascade.NamespaceStats{}
	for _, part := range parts {
		for _, n := range part {
			t := sums[n.Name]
			sums[n.Name] = cascade.NamespaceStats{
				Name: n.Name, Names: t.Names + n.Names, BytesReferenced: t.BytesReferenced + n.BytesReferenced, Recovered: t.Recovered + n.Recovered,
				Spilled: t.Spilled + n.Spilled, SpilledBytes: t.SpilledBytes + n.SpilledBytes, Estimate: t.Estimate || n.Estimate,
				Puts: t.Puts + n.Puts, Aliases: t.Aliases + n.Aliases, Lookups: t.Lookups + n.Lookups, Found: t.Found + n.Found,
				Hits: t.Hits + n.Hits, Misses: t.Misses + n.Misses, Inferred: t.Inferred + n.Inferred, Layout: cmp.Or(t.Layout, n.Layout),
			}
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(x, y cascade.NamespaceStats) int { return strings.Compare(x.Name, y.Name) })
}

// ofOne are fields of which one engine has several namespaces: it looks in the
// first and finds what belongs to it in the others.
var ofOne = []string{"pool", "rank"}

// difference reports how the namespaces of those who look and of those who store
// differ, by their names; kin is false when these are of other
// models or engines, or of one engine, and so are not to be equal.
func difference(look, store string) (differ string, kin bool) {
	a, b := fields(look), fields(store)
	if a == nil || b == nil {
		return "the number of the Redis database", isDatabase(look) && isDatabase(store)
	}
	for _, k := range append([]string{"engine", "model"}, ofOne...) {
		if a[k] != b[k] {
			return "", false
		}
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	var apart []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if a[k] != b[k] && !oneGroup(a[k], b[k]) {
			apart = append(apart, fmt.Sprintf("%s (%q, %q)", k, a[k], b[k]))
		}
	}
	return strings.Join(apart, ", "), len(apart) > 0
}

// fields are those of a namespace as the clients of engines name them,
// "k=v,…", up to where a long name is cut; nil for other names.
func fields(ns string) map[string]string {
	text, _, _ := strings.Cut(ns, "~")
	out := map[string]string{}
	for _, f := range strings.Split(text, ",") {
		if k, v, ok := strings.Cut(f, "="); ok {
			out[k] = v
		}
	}
	if out["engine"] == "" {
		return nil
	}
	return out
}

// oneGroup reports whether "0of2" and "1of2" are of one parallel group: each
// has its part of every block.
func oneGroup(a, b string) bool {
	_, sizeA, okA := strings.Cut(a, "of")
	_, sizeB, okB := strings.Cut(b, "of")
	return okA && okB && sizeA == sizeB
}

func isDatabase(ns string) bool {
	n, ok := strings.CutPrefix(ns, "redis/")
	_, err := strconv.Atoi(n)
	return ok && err == nil
}
