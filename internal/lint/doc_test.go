package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
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
