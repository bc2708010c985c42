package lint

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A reference is the name of a file in a comment or document, or a path out of
// the tree.
var (
	reference = regexp.MustCompile(`(?:[A-Za-z0-9_.-]+/)*[A-Za-z0-9_-]+\.(?:md|go|sh|py|toml|mk)\b`)
	outside   = regexp.MustCompile(`\.\./shared\b|/work/[a-z]|\bpapers/|\breference/[a-z]`)
)

// othersFiles are files of other projects and of users, as comments and
// documents name them.
var othersFiles = []string{"lustre-vm.sh", "lustre-pair.py", "boot.sh"} // of the guests

// tree is what a reference may name: the tracked files.
type tree []string

// has reports whether ref names a file: by its whole path, by the end of it, or
// by its path from the folder dir.
func (t tree) has(dir, ref string) bool {
	ref = strings.TrimPrefix(ref, "./")
	from := path.Join(dir, ref)
	return slices.ContainsFunc(t, func(name string) bool {
		return name == ref || name == from || strings.HasSuffix(name, "/"+ref)
	})
}

// check returns what is wrong with the references of a text in folder dir.
func (t tree) check(dir, text string) []string {
	var wrong []string
	for _, ref := range outside.FindAllString(text, -1) {
		wrong = append(wrong, fmt.Sprintf("%s lies outside the tree: bring the fact in", ref))
	}
	for _, at := range reference.FindAllStringIndex(text, -1) {
		ref := text[at[0]:at[1]]
		// Part of an address, or of a path that begins elsewhere.
		if at[0] > 0 && strings.ContainsAny(text[at[0]-1:at[0]], `/~$:@*}`) {
			continue
		}
		if !t.has(dir, ref) && !slices.Contains(othersFiles, ref) && outside.FindString(ref) == "" {
			wrong = append(wrong, fmt.Sprintf("there is no file %s", ref))
		}
	}
	return wrong
}

// tracked lists the files that git tracks or would.
func tracked(t *testing.T) tree {
	t.Helper()
	top := root(t)
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		t.Skip("this is no clone: git has the list of files that belong to it")
	}
	if _, err := exec.LookPath("git"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no git, which has the list of files that belong to the repository")
	}
	out, err := exec.Command("git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	names := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if len(names) < 100 {
		t.Fatalf("git lists %d files: the listing is wrong", len(names))
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, err := os.Stat(filepath.Join(top, name))
		return err != nil // about to be removed
	})
}

// references is the name of the rule in exceptions.
const references = "references"

// comments returns what is wrong with the references in a package's comments.
func (t tree) comments(p pkg) []finding {
	var found []finding
	for _, f := range p.files {
		for _, group := range f.tree.Comments {
			for _, wrong := range t.check(p.dir, group.Text()) {
				found = append(found, finding{p.at(f, group.Pos()), wrong})
			}
		}
	}
	return found
}

// TestReferences: a reader who follows a reference finds something.
func TestReferences(t *testing.T) {
	files := tracked(t)
	for _, p := range packages(t) {
		if excepted(references, p.dir) != "" {
			continue
		}
		for _, f := range files.comments(p) {
			t.Errorf("%s: %s", f.where, f.what)
		}
	}
	for _, name := range files {
		if path.Ext(name) != ".md" || slices.Contains(strings.Split(name, "/"), "testdata") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, wrong := range files.check(path.Dir(name), line) {
				t.Errorf("%s:%d: %s", name, i+1, wrong)
			}
		}
	}
}

func TestReferencesCanFail(t *testing.T) {
	files := tree{"README.md", "docs/format.md", "docs/mpi.md", "lustre/segment/doc.go", "scripts/run.sh"}
	for _, c := range []struct {
		dir, text string
		wrong     int
	}{
		{"cascade", "see docs/format.md §3 and doc.go", 0},
		{"docs", "[the format](format.md), [start](../README.md)", 0},
		{"cascade", "see design.md §4", 1},
		{"cascade", "measured, ../shared/traces", 1},
		{"lustre", "as reference/lustre-real.md has it", 1},
		{"lustre", "https://example.org/x.md and ~/a.toml", 0},
		{"lustre", "scripts/walk.sh", 1},
	} {
		if got := files.check(c.dir, c.text); len(got) != c.wrong {
			t.Errorf("%s: %q: %q, want %d findings", c.dir, c.text, got, c.wrong)
		}
	}
}
