// Package noise makes the bytes of tests: random ones that nothing compresses, and the same
// ones for the same seed, so that a test compares what it reads without keeping what it
// wrote.
//
// They come from the standard library's ChaCha8, at gigabytes a second under the race detector
// too. The package does not promise the same bytes in another version of Go: no golden file may depend on them.
package noise
