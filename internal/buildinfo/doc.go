// Package buildinfo tells what this program was built from, as far as the
// toolchain recorded it.
//
// Glossary
//
//	version   the module's, as a release or `go install` gave it: "(devel)" for a
//	          build in a checkout without tags
//	revision  the commit of the checkout
//	modified  that the checkout held more than the commit
//
// The package reads nothing but the running binary, and knows nothing of what
// the program does.
package buildinfo
