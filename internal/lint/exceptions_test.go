package lint

import (
	"slices"
	"testing"
)

// exceptions are the folders, with all packages below, that do not keep a rule
// yet. A list only shrinks: TestExceptions refuses an entry that is not needed.
var exceptions = map[string][]string{}

// excepted returns the entry by which a package need not keep a rule, "" for
// none.
func excepted(rule, dir string) string {
	for _, folder := range exceptions[rule] {
		if within(dir, folder) {
			return folder
		}
	}
	return ""
}

// TestExceptions: who keeps a rule by now leaves the list.
func TestExceptions(t *testing.T) {
	all := packages(t)
	check := map[string]func(pkg) bool{}
	for _, r := range rules {
		check[r.name] = func(p pkg) bool { return len(r.check(p)) > 0 }
	}
	files, words := tracked(t), definitions(t, all)
	check[references] = func(p pkg) bool { return len(files.comments(p)) > 0 }
	check[glossaries] = func(p pkg) bool { return len(twice(p, words)) > 0 }
	for rule, folders := range exceptions {
		for _, folder := range folders {
			if check[rule] == nil || !slices.ContainsFunc(all, func(p pkg) bool { return excepted(rule, p.dir) == folder && check[rule](p) }) {
				t.Errorf("%s keeps the rule %q, or there is none: take it out of exceptions", folder, rule)
			}
		}
	}
}
