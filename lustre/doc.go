// Package lustre is the cold tier: KV blocks in large files on a parallel file
// system. Its sub-packages do the work.
//
// Blocks are durable when Put returns. Names recorded by Link and Unlink are
// durable after the next Put, Sync or Close. Evict only forgets: a block whose
// segment is still there comes back with the next incarnation, with its names
// unless they were withdrawn.
//
// # Contexts
//
// A call to a file system whose server is gone cannot be interrupted. ReadInto,
// ReadBatch, ReadSegment and Put return when their context ends, with an error that is a
// *Busy (use errors.As) and matches tiers.ErrUnavailable. The kernel may still write to
// dst, or read Data, until Busy.Done is closed: the owner of that memory must
// not reuse or unmap it before. After any other return the memory is the
// caller's. A context without deadline waits as long as the file system does.
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
// The package decides nothing: no policy, no eviction, no retries. Nothing below it
// depends on sockets or configuration.
package lustre
