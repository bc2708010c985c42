// Package inject makes steps of a load fail as a test wants: in builds with the tag
// faults, of which no rank is made that serves anybody. In every other build each
// function is empty and goes with its call, so that nothing of the package is in the
// program.
//
// A test gives rules, as text: Set in its own process, CASCADE.FAULTS for a rank
// (CONTRIBUTING.md has both). Report counts what they did. The package does not know
// what a load is, and mends nothing: who calls it acts as if the step had failed by
// itself.
//
// Glossary
//
//	step  a part of a load at which it can fail
package inject
