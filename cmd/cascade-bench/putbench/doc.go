// Package putbench compares the put path of a store with SHA-256 alone over the
// same bytes. Nothing else runs in the store that is measured: it has no cold
// tier and no names but those of the blocks. The package does not judge its
// figures.
//
// Its words are those of cmd/cascade-bench/kit.
package putbench
