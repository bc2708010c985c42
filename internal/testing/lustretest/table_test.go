package lustretest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// section7 is the part of docs/lustre.md that tells which test shows what.
func section7(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "lustre.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "\n## 7.")
	if !found {
		t.Fatal("docs/lustre.md has no section 7")
	}
	return table
}

// TestTableNamesTests: the tests that docs/lustre.md names are there, and each
// test that runs in a guest is named there and started by a test of the host.
func TestTableNamesTests(t *testing.T) {
	table := section7(t)
	var sources strings.Builder
	for _, dir := range []string{"cascade", "lustre/segment", "lustre/layout", "internal/testing/lustretest"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			p, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(p)
		}
	}
	text := sources.String()
	named := map[string]bool{}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z]+)[`/]").FindAllStringSubmatch(table, -1) {
		named[name[1]] = true
		if !strings.Contains(text, "\nfunc "+name[1]+"(t *testing.T)") {
			t.Errorf("docs/lustre.md names %s, which is no test", name[1])
		}
	}
	if len(named) < 30 {
		t.Errorf("only %d tests are named: %v", len(named), named)
	}
	for _, f := range regexp.MustCompile(`\nfunc (TestReal[A-Z]\w+)\(`).FindAllStringSubmatch(text, -1) {
		starts := regexp.MustCompile(`(inGuest|then)\(t, m, "[^"]*\b` + f[1] + `\b`)
		if !named[f[1]] || !starts.MatchString(text) {
			t.Errorf("%s: named in docs/lustre.md: %v; started: %v", f[1], named[f[1]], starts.MatchString(text))
		}
	}
}
