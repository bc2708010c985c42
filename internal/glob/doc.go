// Package glob matches keys with patterns as Redis does (SCAN MATCH, CONFIG GET).
//
// Glossary
//
//	token  a part of a pattern that matches one byte, or, for a star, any number
//
// A pattern is compiled once; no pattern takes exponential time. The package does
// not know what the strings are, nor whether upper and lower case differ.
package glob
