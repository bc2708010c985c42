// Package glob matches keys with patterns as Redis does (SCAN MATCH, CONFIG GET).
//
// A pattern is compiled once into literals, classes and stars; a match takes at
// most the product of the lengths of pattern and string, never exponential time.
// The package does not know what the strings are, nor whether upper and lower case
// differ.
package glob
