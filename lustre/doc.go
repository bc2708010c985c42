// Package lustre holds what CASCADE knows about keeping KV blocks on a parallel
// file system; its sub-packages do the work.
//
// The folders
//
//	segment/    aggregated segment files: writing, reading, recovery, space
//	codec/      blocks in fewer bytes
//	campaign/   a directory of segments as a whole: list, check, repair, move
//	catalogue/  what others' segments hold, in an index that survives restarts
//	index/      that index, and tuner/ the controller of its shape
//	layout/     striping: what is asked for, and what Lustre grants
//
// The packages below work on any directory of any Linux file system and are written for
// Lustre: many blocks per file, one writer per file, aligned positioned writes,
// and nothing that Lustre lacks or does differently (docs/format.md §1).
// This package has no code, and those below it know nothing of tiers, names'
// meaning, sockets or configuration.
package lustre
