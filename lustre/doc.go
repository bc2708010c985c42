// Package lustre holds what CASCADE knows about keeping KV blocks on a parallel
// file system; its sub-packages do the work.
//
//	segment/   aggregated segment files: writing, reading, recovery, space
//	campaign/  a directory of segments as a whole: list, check, repair, move
//	layout/    striping: what is asked for, and what Lustre grants
//
// They work on any directory of any Linux file system and are written for
// Lustre: many blocks per file, one writer per file, aligned positioned writes,
// and nothing that Lustre lacks or does differently (docs/format.md §1).
// They know nothing of tiers, names' meaning, sockets or configuration.
package lustre
