// Package lint holds the rules of the code base that a compiler does not know:
// which layer may import which (docs/architecture.md), what libraries never do, and
// what every file and package owes its reader. It is a Go test, so that
// `go test ./internal/lint` checks them anywhere, without network and with no
// tool but git, which knows what files there are, and Python, which computes
// the golden data.
//
// Glossary
//
//	rule     a check with a name and the reason it exists; the reason is part
//	         of every failure
//	finding  one place that breaks a rule
//	layer    packages at one height; imports point down only
//	current  said of a generated file that its program would write again
//
// To change a rule, change its table and the cases that prove it can fail.
// The package has no code outside its tests, and does not judge style that
// gofmt, vet and staticcheck judge already.
package lint
