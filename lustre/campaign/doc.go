// Package campaign treats a directory of segments as a whole: it lists, checks,
// repairs, exports and imports it. docs/format.md §1 describes the files and
// docs/campaigns.md what the operator sees.
//
// Glossary
//
//	problem    a finding that costs blocks, or will, or breaks the format
//	note       a finding that is worth knowing and harms nobody
//	live       named, not expired, by the newest record of that name
//	writer     a process that may still add to a segment
//	salvage    copy what is intact of a damaged segment into a new one
//	aside      under a name that readers pass over: *.damaged
//	stream     a campaign in one tar file, for a pipe or an archive
//
// Repair never changes a byte of a file, never makes up an entry and does
// nothing to segments while one of them may have a writer. Import never overwrites, and publishes a
// segment only when every byte of it has been verified. Both publish as ranks
// do, so that running ranks may read the campaign all the while.
//
// An operation on a server that does not answer hangs in the kernel. When the
// context ends, List and Check return without waiting for it, and the goroutine
// that is stuck stays behind; the others look at the context between operations.
//
// The package does not interpret names, does not merge segments, does not
// decide what to keep, and depends on no rank, tier or socket.
package campaign
