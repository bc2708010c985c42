package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// maxLines bounds a file, in lines.
const maxLines = 600

// pure are the folders of policy.
var pure = []string{"cascade/policy", "gpu/slack"}

// checkPurity judges policies and what lies below them.
func checkPurity(p pkg) []finding {
	if !slices.ContainsFunc(pure, func(f string) bool { return within(p.dir, f) }) {
		return nil
	}
	var found []finding
	for _, f := range p.code() {
		for _, spec := range f.tree.Imports {
			for _, impure := range []string{"os", "net", "io", "sync", "syscall"} {
				if within(importPath(spec), impure) {
					found = append(found, finding{p.at(f, spec.Pos()), "policy imports " + importPath(spec)})
				}
			}
		}
		clocks := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}
		for _, use := range f.uses("time") {
			if slices.Contains(clocks, use.Sel.Name) {
				found = append(found, finding{p.at(f, use.Pos()), "policy uses time." + use.Sel.Name})
			}
		}
	}
	return found
}

// uses returns the selectors on the import with the given path, whatever the
// file calls it.
func (f file) uses(target string) []*ast.SelectorExpr {
	names := f.imports()
	var found []*ast.SelectorExpr
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil && names[x.Name] == target {
				found = append(found, s)
			}
		}
		return true
	})
	return found
}

// ends are the functions by which a library would end the program or the
// goroutine of its caller.
var ends = map[string]*regexp.Regexp{
	"os":                    regexp.MustCompile(`^Exit$`),
	"syscall":               regexp.MustCompile(`^Exit$`),
	"golang.org/x/sys/unix": regexp.MustCompile(`^Exit$`),
	"runtime":               regexp.MustCompile(`^Goexit$`),
}

// loud are the names of what ends the program in package log, in its Logger,
// and in the loggers of others.
var loud = regexp.MustCompile(`^(Fatal|Panic)(f|ln|w|Context)?$`)

// asserts reports whether a file is built with the tag invariants only: no rank runs
// such a build.
func (f file) asserts() bool {
	return slices.ContainsFunc(f.tree.Comments, func(c *ast.CommentGroup) bool {
		return c.Pos() < f.tree.Package && c.List[0].Text == "//go:build invariants"
	})
}

// checkExit judges everything but cmd/, tests and assertions.
func checkExit(p pkg) []finding {
	if within(p.dir, "cmd") {
		return nil
	}
	var found []finding
	for _, f := range p.code() {
		if f.asserts() {
			continue
		}
		report := func(n ast.Node, what string) {
			found = append(found, finding{p.at(f, n.Pos()), what + " outside cmd/"})
		}
		for target, names := range ends {
			for _, use := range f.uses(target) {
				if names.MatchString(use.Sel.Name) {
					report(use, target+"."+use.Sel.Name)
				}
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if loud.MatchString(n.Sel.Name) && !f.testing(n.X) {
					report(n, f.owner(n.X)+"."+n.Sel.Name)
				}
			case *ast.CallExpr:
				if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "panic" && name.Obj == nil {
					report(n, "panic")
				}
			}
			return true
		})
	}
	return found
}

// testing reports whether x is a parameter whose type is one of package
// testing: suites that other packages' tests run end tests, not programs.
func (f file) testing(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	if !ok || id.Obj == nil {
		return false
	}
	param, ok := id.Obj.Decl.(*ast.Field)
	if !ok {
		return false
	}
	t := param.Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	of, ok := t.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	name, ok := of.X.(*ast.Ident)
	return ok && f.imports()[name.Name] == "testing"
}

// owner names what a selector is on: the path of an import, or "a logger".
func (f file) owner(x ast.Expr) string {
	if id, ok := x.(*ast.Ident); ok && id.Obj == nil {
		if target := f.imports()[id.Name]; target != "" {
			return target
		}
	}
	return "a logger's method"
}

// checkAppend judges tests too: they run on Lustre as well.
func checkAppend(p pkg) []finding {
	var found []finding
	for _, f := range p.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "O_APPEND" {
				found = append(found, finding{p.at(f, id.Pos()), "O_APPEND"})
			}
			return true
		})
	}
	return found
}

func checkLength(p pkg) []finding {
	var found []finding
	for _, f := range p.files {
		if f.lines > maxLines {
			found = append(found, finding{p.dir + "/" + f.name, fmt.Sprintf("%d lines, at most %d", f.lines, maxLines)})
		}
	}
	return found
}

// The marks are put together here so that this file does not carry them.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

// checkUnfinished reads comments only: text in strings may name the marks.
func checkUnfinished(p pkg) []finding {
	var found []finding
	for _, f := range p.files {
		for _, group := range f.tree.Comments {
			for _, c := range group.List {
				if mark := unfinished.FindString(c.Text); mark != "" {
					found = append(found, finding{p.at(f, c.Pos()), "comment says " + mark})
				}
			}
		}
	}
	return found
}

// checkExportedDoc judges functions, methods of exported types, types,
// constants and variables. In a group, a comment on the group or at the end of
// the line will do, for go doc shows both.
func checkExportedDoc(p pkg) []finding {
	var found []finding
	for _, f := range p.code() {
		missing := func(pos token.Pos, name string) {
			found = append(found, finding{p.at(f, pos), name + " has no doc comment"})
		}
		for _, decl := range f.tree.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Doc == nil && d.Name.IsExported() && receiverExported(d) {
					missing(d.Pos(), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					for _, name := range undocumented(d, spec) {
						missing(spec.Pos(), name)
					}
				}
			}
		}
	}
	return found
}

// receiverExported is true for functions and for methods that callers of the
// package can name.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// undocumented returns the exported names of a declaration that no comment
// covers.
func undocumented(d *ast.GenDecl, spec ast.Spec) []string {
	var names []string
	switch s := spec.(type) {
	case *ast.TypeSpec:
		// A group's comment says nothing of one type's contract.
		if s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
			names = append(names, s.Name.Name)
		}
	case *ast.ValueSpec:
		if d.Doc == nil && s.Doc == nil && s.Comment == nil {
			for _, n := range s.Names {
				names = append(names, n.Name)
			}
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { return !token.IsExported(n) || strings.HasPrefix(n, "_") })
}
