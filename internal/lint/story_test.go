package lint

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// architecture is the document with the one glossary and the two stories.
const architecture = "docs/architecture.md"

// A story is a section of architecture: a list of functions, in which those
// that a function calls are indented below it. stories bounds their number and
// that of the files they lie in.
var stories = map[string]struct{ functions, files int }{
	"A put": {60, 25},
	"A get": {45, 25},
}

// maxTerms bounds the glossary.
const maxTerms = 80

// step is one line of a story: `dir.Function` or `dir.Type.Method`, or a table
// of functions, `dir.variable`.
type step struct {
	indent    int
	dir, name string
}

func (s step) String() string { return s.dir + "." + s.name }

// last is the name by which callers know the step.
func (s step) last() string { return s.name[strings.LastIndex(s.name, ".")+1:] }

var stepLine = regexp.MustCompile("^( *)- `([a-z0-9/]+)\\.([A-Za-z0-9_.]+)`")

// section returns the lines below a heading of second level, up to the next.
func section(text, heading string) []string {
	_, rest, _ := strings.Cut(text, "\n## "+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	return strings.Split(rest, "\n")
}

func steps(lines []string) []step {
	var list []step
	for _, l := range lines {
		if m := stepLine.FindStringSubmatch(l); m != nil {
			list = append(list, step{len(m[1]), m[2], m[3]})
		}
	}
	return list
}

// function is where a function is, and what its body names.
type function struct {
	file  string
	names map[string]bool
}

// functions are those of the tree, by folder and name; tables of functions, which
// are package variables, are among them.
func functions(all []pkg) map[string]map[string]*function {
	found := map[string]map[string]*function{}
	for _, p := range all {
		found[p.dir] = map[string]*function{}
		for _, f := range p.code() {
			for _, decl := range f.tree.Decls {
				addFunctions(found[p.dir], p.dir+"/"+f.name, decl)
			}
		}
	}
	return found
}

func addFunctions(to map[string]*function, file string, decl ast.Decl) {
	add := func(name string, body ast.Node) {
		if to[name] == nil {
			to[name] = &function{file, map[string]bool{}}
		}
		ast.Inspect(body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				to[name].names[id.Name] = true
			}
			return true
		})
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Body == nil {
			return
		}
		name := d.Name.Name
		if r := receiver(d); r != "" {
			name = r + "." + name
		}
		add(name, d.Body)
		if name == "init" { // it fills tables
			for _, s := range d.Body.List {
				if set, ok := s.(*ast.AssignStmt); ok {
					if id, ok := set.Lhs[0].(*ast.Ident); ok {
						add(id.Name, set.Rhs[0])
					}
				}
			}
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for i, value := range v.Values {
					add(v.Names[min(i, len(v.Names)-1)].Name, value)
				}
			}
		}
	}
}

// checkStory returns what is not true of a story.
func checkStory(list []step, tree map[string]map[string]*function) []string {
	var wrong []string
	var callers []step
	for i, s := range list {
		f := tree[s.dir][s.name]
		if f == nil {
			wrong = append(wrong, fmt.Sprintf("%v is not in the tree%s", s, elsewhere(s, tree)))
		}
		for len(callers) > 0 && callers[len(callers)-1].indent >= s.indent {
			callers = callers[:len(callers)-1]
		}
		if len(callers) > 0 {
			from := callers[len(callers)-1]
			if by := tree[from.dir][from.name]; by != nil && !by.names[s.last()] {
				wrong = append(wrong, fmt.Sprintf("%v does not name %v, which is below it", from, s))
			}
		} else if i == 0 && s.indent > 0 {
			wrong = append(wrong, fmt.Sprintf("%v is below nothing", s))
		}
		callers = append(callers, s)
	}
	return wrong
}

// elsewhere lists where a function of the step's name is instead.
func elsewhere(s step, tree map[string]map[string]*function) string {
	var at []string
	for dir, functions := range tree {
		for name := range functions {
			if (step{0, dir, name}).last() == s.last() {
				at = append(at, dir+"."+name)
			}
		}
	}
	if len(at) == 0 {
		return ""
	}
	slices.Sort(at)
	return "; there is " + strings.Join(at[:min(len(at), 5)], ", ")
}

func readArchitecture(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(architecture)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestStories: who follows a put or a get by the document finds each function
// where it is said to be, and called by the one above it.
func TestStories(t *testing.T) {
	text, tree := readArchitecture(t), functions(packages(t))
	for heading, most := range stories {
		list := steps(section(text, heading))
		if len(list) == 0 {
			t.Errorf("%s: %s: no functions", architecture, heading)
		}
		seen, files := map[string]bool{}, map[string]bool{}
		for _, s := range list {
			seen[s.String()] = true
			if f := tree[s.dir][s.name]; f != nil {
				files[f.file] = true
			}
		}
		if len(seen) > most.functions || len(files) > most.files {
			t.Errorf("%s: %s: %d functions in %d files, at most %d in %d", architecture, heading, len(seen), len(files), most.functions, most.files)
		}
		for _, wrong := range checkStory(list, tree) {
			t.Errorf("%s: %s: %s", architecture, heading, wrong)
		}
	}
}

func TestStoriesCanFail(t *testing.T) {
	f, err := parse("cascade/a.go", []byte(`package a
type T struct{}
var table = map[string]func(){"g": g}
func (t *T) F() { table["g"]() }
func g() { var m interface{ H() }; m.H() }
func (t T) H() {}
`))
	if err != nil {
		t.Fatal(err)
	}
	tree := functions([]pkg{{dir: "cascade", files: []file{f}}})
	for _, c := range []struct{ text, want string }{
		{"- `cascade.T.F` reads\n  - `cascade.table`\n    - `cascade.g`\n      - `cascade.T.H`\n- `cascade.g`", ""},
		{"- `cascade.T.F`\n  - `cascade.g`", "does not name cascade.g"},
		{"- `cascade.F`", "is not in the tree; there is cascade.T.F"},
		{"- `cascade.g`\n  - `cascade.T.H`\n  - `cascade.T.F`", "cascade.g does not name cascade.T.F"},
	} {
		got := strings.Join(checkStory(steps(strings.Split(c.text, "\n")), tree), "; ")
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
}

// term is the first cell of a line of a table, or the first word of a line of a
// glossary in doc.go.
var (
	tableTerm = regexp.MustCompile(`^\| ([^|*]+?) +\|`)
	docTerm   = regexp.MustCompile(`^\t(\S.*?)  +\S`)
	glossary  = regexp.MustCompile(`(?m)^(# )?Glossary\n\n`)
)

// terms returns the words of the project's glossary.
func terms(text string) []string {
	var list []string
	for _, l := range section(text, "Glossary") {
		m := tableTerm.FindStringSubmatch(l)
		if m != nil && m[1] != "term" && !strings.HasPrefix(m[1], "-") {
			list = append(list, m[1])
		}
	}
	return list
}

// docTerms returns the words that a package defines for itself.
func docTerms(p pkg) []string {
	text := docText(p)
	at := glossary.FindStringIndex(text)
	if at == nil {
		return nil
	}
	var list []string
	for _, l := range strings.Split(text[at[1]:], "\n") {
		if l != "" && !strings.HasPrefix(l, "\t") {
			break
		}
		if m := docTerm.FindStringSubmatch(l); m != nil {
			list = append(list, m[1])
		}
	}
	return list
}

// glossaries is the name of the rule of TestTerms in exceptions.
const glossaries = "glossaries"

// definitions returns where each word is defined.
func definitions(t *testing.T, all []pkg) map[string][]string {
	t.Helper()
	where := map[string][]string{}
	for _, word := range terms(readArchitecture(t)) {
		where[word] = append(where[word], architecture)
	}
	for _, p := range all {
		for _, word := range docTerms(p) {
			where[word] = append(where[word], p.dir)
		}
	}
	return where
}

// twice returns the words of a package that are defined elsewhere too: those of
// packages that are excepted do not count.
func twice(p pkg, where map[string][]string) []string {
	var wrong []string
	for _, word := range docTerms(p) {
		for _, at := range where[word] {
			if at != p.dir && (excepted(glossaries, at) == "" || excepted(glossaries, p.dir) != "") {
				wrong = append(wrong, fmt.Sprintf("%s is defined in %s too", word, at))
			}
		}
	}
	return wrong
}

// TestTerms: a word is defined once, in the project's glossary or in that of
// the package whose own it is.
func TestTerms(t *testing.T) {
	list := terms(readArchitecture(t))
	if len(list) == 0 || len(list) > maxTerms {
		t.Errorf("%s: %d terms in the glossary, at least 1, at most %d", architecture, len(list), maxTerms)
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(list))); len(unique) != len(list) {
		t.Errorf("%s: a term is there twice: %q", architecture, list)
	}
	all := packages(t)
	where := definitions(t, all)
	for _, p := range all {
		if excepted(glossaries, p.dir) != "" {
			continue
		}
		for _, wrong := range twice(p, where) {
			t.Errorf("%s/doc.go: %s", p.dir, wrong)
		}
	}
}

func TestTermsCanFail(t *testing.T) {
	f, err := parse("dht/doc.go", []byte(doc("", "Glossary", "", "\tpin  a hold", "\t     on bytes", "\trun  of pages", "", "The package is.", "", "\tno  term")))
	if err != nil {
		t.Fatal(err)
	}
	p := pkg{dir: "dht", files: []file{f}}
	if got := docTerms(p); !slices.Equal(got, []string{"pin", "run"}) {
		t.Errorf("the terms are %q", got)
	}
	where := map[string][]string{"pin": {architecture, "dht"}, "run": {"dht"}}
	if got := twice(p, where); len(got) != 1 || !strings.Contains(got[0], architecture) {
		t.Errorf("defined twice: %q", got)
	}
	if got := terms("# A\n\n## Glossary\n\n| term | meaning |\n|---|---|\n| pin | a hold |\n\n## B\n\n| no | term |\n"); !slices.Equal(got, []string{"pin"}) {
		t.Errorf("the terms of a document are %q", got)
	}
}
