// Package testlog keeps what a program, or a part of one, says while a test reads it.
//
// Glossary
//
//	log    what was written so far, whole
//	line   up to and with its end of line
//
// The package does not wait for anything to be said, and understands no format.
package testlog
