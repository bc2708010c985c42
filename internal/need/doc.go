// Package need is what a test says of a component that it drives and that a
// machine may lack: a program, a right, a size of memory.
//
// Glossary
//
//	remedy     what whoever reads the line can do so that the test runs
//
// A test whose component is missing is skipped, and the line says what it lacks
// and the remedy. With CI=true it fails instead: there everything is to run.
//
// The package installs nothing, and does not judge whether a component works.
package need
