// Package buildinfo distinguishes what this program was built from, as far as the
// toolchain recorded it.
//
// Glossary
//
//	revision  the commit of the checkout
//	modified  that the checkout held more than the commit
//
// The package reads nothing but the running binary, and knows nothing of what
// the program does.
package buildinfo
