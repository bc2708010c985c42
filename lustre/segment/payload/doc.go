// Package payload turns blocks into what segments hold of them, and back: a codec makes
// them smaller where that pays, and each is checked before anybody gets it. Encoding takes
// all CPUs and memory of its own, which the caller frees once the payloads are written.
// Decoding is done in the memory of the block.
//
// What the bytes look like is in format, and which codecs there are in lustre/codec. The
// package does not touch files: the store writes and reads what it makes.
package payload
