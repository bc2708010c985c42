// Package segment keeps blocks in large files that one process writes and every
// process may read. docs/format.md §1 describes the files byte by byte.
//
// Parts
//
//	format   the bytes of a file, and which entries of it count
//	lease    which run owns a directory, and taking over
//	space    when a write may begin, what a merge rewrites and in which order
//	breaker  which files and servers are not tried for a while
//	pool     how many operations are in the kernel at once, and how long they are waited for
//	handles  files that stay open between reads by place
//	trust    whose files are read
//
// Here are the index, and what joins the parts: writing and sealing (put.go, sync.go),
// reading (read.go, batch*.go), merging, recovery, spilling, and closing.
//
// Glossary
//
//	foreign      not owned by this run
//	located      read by its place, without an index
//	spilled      of a file: only an Indexer has its entries, until it is reloaded
//	retired      a segment without more frames: a caller gave up waiting for it
//	withdrawn    a block dropped from the index because its bytes were bad
//
// Other words are those of the parts.
//
// A put is encoded, if asked to, goes into one frame by one write, waits for an fsync
// that it shares with others, and is then in the index. Names of Link go out with the
// next frame, at Sync, at Close, or when many have gathered. A batch of reads goes in
// the order in which blocks lie, neighbours with one call, many calls at once.
//
// Errors of the file system become states: a failed write poisons one segment
// and the next Put starts another; a full file system, or one that is nearly so,
// makes the store read-only until there is room; a failed read is a miss. All file
// operations run in bounded pools under the caller's context. An operation that hangs
// in the kernel cannot be stopped, so the caller gets a *pool.Busy whose Done is closed
// when its memory is no longer touched. Health counts all of this.
//
// The index is in memory and rebuilt by Recover, but for the files that were spilled to
// an Indexer. The package does not decide what to keep, does not compute block ids, does
// not stripe, and leaves to lustre/codec how a block is encoded and whether that pays.
package segment
