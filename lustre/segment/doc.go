// Package segment keeps blocks in large files that one process writes and every
// process may read. docs/format.md §1 describes the files byte by byte.
//
// Glossary
//
//	segment      one file: header page, frames, and a footer once it is sealed
//	frame        one batch of entries and payloads, written by one vectored
//	             write straight from the caller's memory
//	entry        BLOCK, NAME or DROP
//	payload      a block's bytes as they are stored: themselves, or an encoding
//	             of package codec, by which CRC and place in the file go
//	incarnation  one run of one rank; it writes to a directory of its own
//	owner        the run that may unlink and merge what lies in a directory: the
//	             one that writes there, and after its end a later one
//	token        an empty file whose name tells the owner
//	foreign      said of what this run does not own
//	far          said of what is read by its place, without an index
//	poisoned     a segment that saw a write, fsync or close fail: nothing in it
//	             that was not durable before is trusted, nothing is added
//	retired      a segment that gets no more frames because a caller gave up
//	             waiting for it
//	tombstone    a record that is kept because it hides an older one
//	withdrawn    a block dropped from the index because its bytes were bad
//	hanging      an operation that has been in the kernel for long
//	circuit      what is known of the answers of one file, or to all writes; it is
//	             broken while they are not tried
//
// Duties
//
//	Put      encode, if asked to → frame → one write → group fsync → index →
//	         return. Concurrent Puts share an fsync.
//	Link     buffers name records; they go out with the next frame, at Sync, at
//	         Close, or when many have gathered.
//	Place    tells where a block lies and how it is stored, for other processes
//	ReadPlace reads a block of any process by its place, without an index
//	Ref      reads a block into the caller's memory, decodes it there and verifies
//	         its CRC32C.
//	ReadBatch reads many blocks, by reference or by place, in the order in which
//	         they lie, neighbours with one call, many calls at once; io_uring
//	         where the kernel has it.
//	Adviser  is told what will be read in many pieces, for the servers' sake.
//	Access   tells how files are read and written: past the page cache where a
//	         probe says that this works.
//	Evict    forgets a block; a segment with nothing left in it is unlinked.
//	Merge    moves what is live out of segments that hold much that is dead.
//	Sparsest tells which blocks keep a segment for little.
//	Recover  reads the segments of all incarnations of all ranks, and takes over
//	         those of this rank number whose owners have ended.
//	Adopt    does so with one incarnation, at any time.
//	Contents tells what counts of one segment, and leaves the index as it is;
//	         Hide and Hides keep withdrawals of what lies in such segments.
//	Missing  looks for files that somebody removed, and forgets what was in them.
//	Refused  tells what was not read because of whose it is (Trust).
//	Late     tells what did not answer and was left to a later round.
//	Inspect  tells what is in a file, what is damaged and what can be saved;
//	         Drafts and Transfer make sealed segments of entries from elsewhere.
//	         They need no Store.
//
// Errors of the file system become states: a failed write poisons one segment
// and the next Put starts another; a full file system, or one that is nearly so
// (room.go), makes the store read-only until there is room; a failed read is a
// miss. All file operations run in bounded pools under the caller's context. An
// operation that hangs in the kernel cannot be stopped, so the caller gets a
// *Busy that tells when its memory is no longer touched. What does not answer is
// not asked again for a while (breaker.go), as Health tells, which counts all of
// this.
//
// The index is in memory and rebuilt by Recover. The package does not decide
// what to keep, does not compute block ids, does not stripe, and leaves to
// lustre/codec how a block is encoded and whether that pays.
package segment
