// Package testdocs compares the commands in README.md and docs with the verbs
// and flags of a program, for tests of that program.
//
// Glossary
//
//	command  what follows the name of a program in a line or a piece of code of a
//	         document
//
// The package does not run anything.
package testdocs
