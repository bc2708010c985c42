// Package testlog keeps the output of a program, or a part of one, while a test reads it.
//
// Glossary
//
//	log    what was written so far, whole
//	line   up to and with its end of line
//
// The package does not wait for output, and understands no format.
package testlog
