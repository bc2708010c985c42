// Package testdocs compares the commands in README.md and docs with the verbs
// and flags of a program, for tests of that program.
//
// A document shows a command in a code block or between backquotes; what the
// program does not have is a failure.
//
// The package does not run anything.
package testdocs
