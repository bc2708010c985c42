// Package tracetest finds the public traces for tests.
//
// Glossary
//
//	public trace   one that others published; it lies beside the checkout, in
//	               ../shared/traces, and is never part of it
//
// The package neither reads nor downloads traces.
package tracetest
