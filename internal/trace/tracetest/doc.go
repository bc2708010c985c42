// Package tracetest finds the public traces for tests.
//
// Glossary
//
//	public trace   one that others published; it lies in the folder
//	               traces of a folder named shared beside the checkout, and is
//	               never part of it
//
// The package neither reads nor downloads traces.
package tracetest
