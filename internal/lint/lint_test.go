package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "cascadekv"

// rule is one check of a package. check returns what breaks it.
type rule struct {
	name   string
	reason string
	check  func(p pkg) []finding
}

// rules are all rules, in the order in which they are reported.
var rules = []rule{
	{"layers", "imports point down only, so that each layer can be read, tested and replaced without those above it", checkLayers},
	{"static", "cascaded and cascade are copied to any node, so they load no C library: the package belongs into a program of its own, or into dynamic", checkStatic},
	{"pure policy", "the daemon, the trace replayer and the simulator run policy unchanged, so it has no clock, no I/O and no locks", checkPurity},
	{"no exit", "a library reports an error and leaves the decision to its caller; one bad block must not end a rank", checkExit},
	{"package doc", "doc.go says what the package owns and what it does not do; less than five lines cannot", checkPackageDoc},
	{"limits", "what a package does not do is the half of its contract that no symbol shows", checkLimits},
	{"no append mode", "on Lustre O_APPEND takes a lock on the whole file for each write; write at offsets", checkAppend},
	{"names", "one standard term for one thing: a reader must not translate (CONTRIBUTING.md)", checkNames},
	{"type size", "a type with more methods or fields is several that share their state", checkTypeSize},
	{"package length", "a package is one idea; above 3,500 lines it is several", checkPackageLength},
	{"file length", "a file is one idea; above 600 lines it is several", checkLength},
	{"unfinished", "unfinished work belongs into an issue, where somebody will see it", checkUnfinished},
	{"exported doc", "an exported symbol is a promise: units, ownership, concurrency and errors must be written down", checkExportedDoc},
}

// pkg is one directory of Go files, tests included.
type pkg struct {
	dir   string // slash-separated, relative to the module's root
	files []file
}

// file is one parsed file.
type file struct {
	name  string // without its directory
	set   *token.FileSet
	tree  *ast.File
	lines int
}

func (f file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// finding is one place that breaks a rule.
type finding struct {
	where string
	what  string
}

// at names the line of a node.
func (p pkg) at(f file, pos token.Pos) string {
	return fmt.Sprintf("%s:%d", path.Join(p.dir, f.name), f.set.Position(pos).Line)
}

// code returns the files that are not tests.
func (p pkg) code() []file {
	var code []file
	for _, f := range p.files {
		if !f.test() {
			code = append(code, f)
		}
	}
	return code
}

// imports maps the names by which a file knows its imports to their paths.
func (f file) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range f.tree.Imports {
		target := importPath(spec)
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = target
	}
	return names
}

func importPath(spec *ast.ImportSpec) string {
	target, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return target
}

func parse(name string, text []byte) (file, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, text, parser.ParseComments)
	return file{name: path.Base(name), set: set, tree: tree, lines: bytes.Count(text, []byte("\n"))}, err
}

// root finds the directory of go.mod above the test.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}

// packages parses every Go file of the module. Hidden folders, testdata and
// other modules are not part of it.
func packages(t *testing.T) []pkg {
	t.Helper()
	top := root(t)
	var found []pkg
	err := filepath.WalkDir(top, func(full string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if full != top {
			_, nested := os.Stat(filepath.Join(full, "go.mod"))
			if nested == nil || entry.Name() == "testdata" || strings.ContainsAny(entry.Name()[:1], "._") {
				return filepath.SkipDir
			}
		}
		dir, err := filepath.Rel(top, full)
		if err != nil {
			return err
		}
		p, err := load(full, filepath.ToSlash(dir))
		if len(p.files) > 0 {
			found = append(found, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// load parses the Go files of one folder.
func load(full, dir string) (pkg, error) {
	p := pkg{dir: dir}
	names, err := filepath.Glob(filepath.Join(full, "*.go"))
	if err != nil {
		return p, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return p, err
		}
		f, err := parse(filepath.ToSlash(name), text)
		if err != nil {
			return p, err
		}
		p.files = append(p.files, f)
	}
	return p, nil
}

func TestRules(t *testing.T) {
	all := packages(t)
	if len(all) < 5 {
		t.Fatalf("found %d packages: the walk is wrong", len(all))
	}
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			for _, p := range all {
				if excepted(r.name, p.dir) != "" {
					continue
				}
				for _, f := range r.check(p) {
					t.Errorf("%s: %s\n\twhy: %s", f.where, f.what, r.reason)
				}
			}
		})
	}
}
