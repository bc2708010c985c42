// Package payload turns blocks into what segments hold of them, and back: a codec makes
// them smaller where that pays, and each is checked before anybody gets it. Encoding takes
// all CPUs and memory of its own, which the caller frees once the payloads are written.
// Decoding is done in the memory of the block.
//
// What the bytes look like is in format, which codecs there are in lustre/codec. It does not read or write
// files: the store does.
package payload
