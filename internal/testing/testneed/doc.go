// Package testneed skips tests that drive a component which the machine lacks: a program, a right, a size of memory.
//
// Glossary
//
//	component  what lies outside of the module and its toolchain
//	remedy     what whoever reads the line can do so that the test runs
//
// A test whose component is missing is skipped, with a line that names it and
// the remedy. With CI=true it fails instead: there everything is to run.
//
// The package installs nothing, and does not judge whether a component works.
package testneed
