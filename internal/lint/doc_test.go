package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// minDocLines is the least a package comment takes, in lines.
const minDocLines = 5

// checkPackageDoc wants the package comment in doc.go.
func checkPackageDoc(p pkg) []finding {
	for _, f := range p.files {
		if f.name != "doc.go" {
			continue
		}
		if f.tree.Doc == nil {
			return []finding{{p.dir + "/doc.go", "no package comment"}}
		}
		first, last := f.set.Position(f.tree.Doc.Pos()).Line, f.set.Position(f.tree.Doc.End()).Line
		if n := last - first + 1; n < minDocLines {
			return []finding{{p.dir + "/doc.go", fmt.Sprintf("the package comment has %d lines, want at least %d", n, minDocLines)}}
		}
		return nil
	}
	return []finding{{p.dir, "no doc.go"}}
}

// docText is the package comment of doc.go; "" where checkPackageDoc complains.
func docText(p pkg) string {
	for _, f := range p.files {
		if f.name == "doc.go" {
			return f.tree.Doc.Text()
		}
	}
	return ""
}

// A glossary is a heading and at least one word with its meaning. A package
// without words of its own names the one that has them.
var (
	glossary  = regexp.MustCompile(`(?m)^(# )?Glossary\n\n\t\S.*\S  +\S`)
	elsewhere = regexp.MustCompile(`\bwords are those of ([a-z0-9]+(/[a-z0-9-]+)+)`)
)

// checkGlossary wants a package to say what its words mean.
func checkGlossary(p pkg) []finding {
	if text := docText(p); text == "" || glossary.MatchString(text) || elsewhere.MatchString(oneLine(text)) {
		return nil
	}
	return []finding{{p.dir + "/doc.go", `no Glossary, and no "words are those of PACKAGE"`}}
}

// limit is a sentence of which a package is the subject and that denies
// something.
var limit = regexp.MustCompile(`\b([Tt]he|[Tt]his) (package|suite|tool|program)\b[^.]* (not|no|nothing|never|neither|nor|none|nobody)\b`)

// checkLimits wants a package to say what it leaves to others. The glossary
// does not count: it tells words apart.
func checkLimits(p pkg) []finding {
	text := docText(p)
	if text == "" {
		return nil
	}
	prose := slices.DeleteFunc(strings.Split(text, "\n\n"), func(s string) bool { return strings.HasPrefix(s, "\t") })
	if slices.ContainsFunc(prose, func(s string) bool { return limit.MatchString(oneLine(s)) }) {
		return nil
	}
	return []finding{{p.dir + "/doc.go", "no sentence tells what the package does not do"}}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestGlossariesElsewhere: a package whose words are those of another one
// sends its reader to where they are.
func TestGlossariesElsewhere(t *testing.T) {
	all := packages(t)
	for _, p := range all {
		for _, where := range elsewhere.FindAllStringSubmatch(oneLine(docText(p)), -1) {
			if !slices.ContainsFunc(all, func(o pkg) bool { return o.dir == where[1] && glossary.MatchString(docText(o)) }) {
				t.Errorf("%s: its words are those of %s, which has no Glossary", p.dir, where[1])
			}
		}
	}
}
