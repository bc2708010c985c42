package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// word is one that a standard term replaces in names. In a sentence it may
// mean what it means.
type word struct {
	name    string
	instead string
	part    bool     // refused as one word of a longer name too
	in      []string // refused in these folders only; nil: everywhere
}

var (
	theStore  = []string{"cascade", "tiers"}
	coldTiers = []string{"cascade", "tiers", "lustre"}
)

// words are refused as names of packages, files, types, functions, fields,
// flags and metrics.
var words = []word{
	{"void", "tombstone", true, coldTiers},
	{"supersede", "invalidate", true, nil},
	{"unsaid", "pending", true, nil},
	{"restate", "placementChanged", true, nil},
	{"say", "enqueuePublish", false, theStore},
	{"looks", "lookups", false, nil},
	{"looked", "lookups", false, nil},
	{"complete", "finalizeID", false, theStore},
	{"completed", "finalized", false, theStore},
	{"bequest", "orphans", true, nil},
	{"estate", "orphans", true, nil},
	{"heir", "Adopter", true, nil},
	{"beside", "othersUsage", true, nil},
	{"inherit", "adopt", true, coldTiers},
	{"takein", "adopt", true, nil},
	{"claim", "adopt", false, []string{"tiers"}},
	{"weigh", "syncColdHold", true, theStore},
	{"entity", "block, blockState", true, nil},
	{"parking", "poller", true, nil},
	{"visitors", "httpConns", true, nil},
	{"places", "semaphore", false, []string{"cascade", "internal/server"}},
	{"rest", "quiesce", false, []string{"internal/server"}},
	{"far", "by location", true, coldTiers},
	{"apart", "unindexed", true, coldTiers},
	{"foreign", "other owner", false, coldTiers},
	{"fall", "demotion", true, theStore},
	{"demote", "demotion", false, []string{"cascade/policy"}},
	{"heed", "earlysignal", true, nil},
	{"said", "testlog; or what was reported", true, nil},
	{"need", "testneed", false, nil},
	{"cores", "cpus", false, nil},
	{"land", "pending read", false, nil},
	{"landing", "read buffer pool", true, nil},
	{"arrival", "pending read", true, coldTiers},
	{"room", "read buffer pool", false, []string{"cascade"}},
	{"ahead", "prefetch", true, theStore},
	{"follow", "advance", false, theStore},
	{"outrun", "invalidateFetch", true, nil},
	{"fill", "PutBatchFunc", true, []string{"cascade"}},
	{"spread", "ParallelFor", false, theStore},
	{"coldroom", "coldTier", true, nil},
	{"standing", "coldState", true, nil},
	{"isbelow", "hasLowerCopy", false, nil},
	{"tally", "nameStats; or what is counted", true, nil},
	{"enroll", "add", true, nil},
	{"strike", "remove", true, nil},
	{"fathom", "updateMinDepth", true, nil},
	{"told", "linkSeq; or what was reported", true, nil},
	{"hurry", "syncRequested", true, nil},
	{"demanded", "cleanRequested", true, nil},
	{"lane", "splice pipe", true, nil},
	{"refer", "zero-copy send", true, []string{"internal/server"}},
	{"lend", "zero-copy send", true, nil},
	{"tenure", "lease", true, nil},
	{"sighting", "observation", true, nil},
	{"rely", "verifyLease", true, nil},
	{"over", "lost", false, []string{"lustre/segment"}},
	{"bury", "delete", true, nil},
	{"refute", "invalidate", true, nil},
	{"again", "resync", false, nil},
	{"shortage", "low-space mode", true, nil},
}

// split cuts a name into its words, in lower case: takeIn2 is take, in2.
func split(name string) []string {
	var parts []string
	var part strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if (begins || !unicode.IsLetter(r) && !unicode.IsDigit(r)) && part.Len() > 0 {
			parts = append(parts, part.String())
			part.Reset()
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			part.WriteRune(unicode.ToLower(r))
		}
	}
	return append(parts, part.String())
}

// refusedName returns what is wrong with a name in a folder, "" for nothing.
func refusedName(dir, name string) string {
	parts := split(name)
	whole := strings.Join(parts, "")
	for _, w := range words {
		if w.in != nil && !slices.ContainsFunc(w.in, func(f string) bool { return within(dir, f) }) {
			continue
		}
		if whole == w.name || w.part && (slices.Contains(parts, w.name) || pairIs(parts, w.name)) {
			return fmt.Sprintf("the name %s: instead of %s write %s", name, w.name, w.instead)
		}
	}
	return ""
}

// pairIs reports whether two words that follow each other are the word.
func pairIs(parts []string, word string) bool {
	for i := range parts[1:] {
		if parts[i]+parts[i+1] == word {
			return true
		}
	}
	return false
}

// settings are texts that name a flag, a metric or a field of JSON.
var (
	metric  = regexp.MustCompile(`^"(?:# HELP )?(cascade_[a-z0-9_]+)`)
	flagAdd = regexp.MustCompile(`^(Bool|Int|Int64|Uint|Uint64|Float64|String|StringSlice|Duration|Bytes)?(Var)?P?$`)
)

func checkNames(p pkg) []finding {
	var found []finding
	report := func(where, name string) {
		if why := refusedName(p.dir, name); why != "" {
			found = append(found, finding{where, why})
		}
	}
	report(p.dir, p.dir[strings.LastIndex(p.dir, "/")+1:])
	for _, f := range p.files {
		report(p.dir+"/"+f.name, strings.TrimSuffix(strings.TrimSuffix(f.name, ".go"), "_test"))
		if f.test() {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			for _, id := range named(n) {
				report(p.at(f, n.Pos()), id)
			}
			return true
		})
	}
	return found
}

// named returns the names that a node declares or that are the text of a flag
// or metric.
func named(n ast.Node) []string {
	var names []string
	switch n := n.(type) {
	case *ast.FuncDecl:
		names = append(names, n.Name.Name)
	case *ast.TypeSpec:
		names = append(names, n.Name.Name)
	case *ast.StructType:
		names = fieldNames(n.Fields)
	case *ast.InterfaceType:
		names = fieldNames(n.Methods)
	case *ast.CallExpr:
		call, ok := n.Fun.(*ast.SelectorExpr)
		if !ok || !flagAdd.MatchString(call.Sel.Name) {
			break
		}
		for _, arg := range n.Args {
			if text, ok := arg.(*ast.BasicLit); ok && len(text.Value) > 2 {
				names = append(names, strings.Trim(text.Value, `"`))
				break // the flag's name is its first text
			}
		}
	case *ast.BasicLit:
		if m := metric.FindStringSubmatch(n.Value); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}

func fieldNames(list *ast.FieldList) []string {
	var names []string
	for _, field := range list.List {
		for _, id := range field.Names {
			names = append(names, id.Name)
		}
	}
	return names
}
