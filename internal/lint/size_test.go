package lint

import (
	"fmt"
	"go/ast"
	"go/token"
)

// Bounds of what one head can hold.
const (
	maxMethods      = 60
	maxFields       = 25
	maxPackageLines = 3500 // without tests
)

// largePackages may have more lines.
var largePackages = map[string]int{"lustre/segment": 5000}

func checkPackageLength(p pkg) []finding {
	lines, most := 0, maxPackageLines
	if n, ok := largePackages[p.dir]; ok {
		most = n
	}
	for _, f := range p.code() {
		lines += f.lines
	}
	if lines > most {
		return []finding{{p.dir, fmt.Sprintf("%d lines without tests, at most %d", lines, most)}}
	}
	return nil
}

// checkTypeSize judges all but cmd/. Plain records may have any number of
// fields.
func checkTypeSize(p pkg) []finding {
	if within(p.dir, "cmd") {
		return nil
	}
	var found []finding
	methods := map[string]int{}
	for _, f := range p.code() {
		for _, decl := range f.tree.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv != nil {
				methods[receiver(d)]++
			}
		}
	}
	for _, f := range p.code() {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			t, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if m := methods[t.Name.Name]; m > maxMethods {
				found = append(found, finding{p.at(f, t.Pos()), fmt.Sprintf("%s has %d methods, at most %d", t.Name.Name, m, maxMethods)})
			}
			s, ok := t.Type.(*ast.StructType)
			if ok && !(methods[t.Name.Name] == 0 || record(s)) && fields(s) > maxFields {
				found = append(found, finding{p.at(f, t.Pos()), fmt.Sprintf("%s has %d fields, at most %d", t.Name.Name, fields(s), maxFields)})
			}
			return true
		})
	}
	return found
}

// receiver is the name of the type that a method is on, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
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
			return x.Name
		default:
			return ""
		}
	}
}

// fields counts the fields of a struct, and of the structs within it.
func fields(s *ast.StructType) int {
	n := 0
	ast.Inspect(s, func(node ast.Node) bool {
		if f, ok := node.(*ast.Field); ok {
			n += max(1, len(f.Names))
			_, calls := f.Type.(*ast.FuncType)
			return !calls
		}
		return true
	})
	return n
}

// record reports whether a struct with methods is a plain record all the same:
// data that is passed around, such as options and statistics, whose fields are
// all exported.
func record(s *ast.StructType) bool {
	for _, f := range s.Fields.List {
		for _, id := range f.Names {
			if !token.IsExported(id.Name) {
				return false
			}
		}
	}
	return true
}
