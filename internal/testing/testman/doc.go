// Package testman renders man pages as a reader's machine does, for tests of what
// makes them.
//
// A page that man or groff warns of is a failure; a machine without these programs
// skips the test.
//
// The package does not judge what a page says, but for the verbs and flags that Command
// looks for.
package testman
