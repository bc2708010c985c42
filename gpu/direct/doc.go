// Package direct moves blocks between the disks of a node (gpu/nvme) and memory that a client shares, by a ring (gpu/gio)
// whose event words the client raises: no byte passes through shared memory or a thread of this process, but for its checksum, and the id of
// what is written.
//
// Glossary
//
//	batch  blocks that are read, or written, once a word of the ring has reached a value: an IOCB
//
// A Ring is a region of gpu/gio with its engine, the files of a pool, and the memory that a client maps.
// A ring has the files that were ready when it was made, open for reading alone. What it can not read (a block that lies in another
// file, or not on whole pages) is for the caller to bring by another way, and so is a block that fails: the ring withdraws nothing.
// One that writes has a lot (package nvme) besides, open for writing: room of its own, which no other ring and nobody else writes to while any of its
// writes may be under way. It may have it later than its client has the ring: when the disks have a lot.
//
// A client can write anything into its ring at any time, and so into its lot. What this process believes of it is the end of an I/O, which
// only that client's own memory and blocks depend on; no block counts as read whose bytes fail their checksum, and one that is written
// has the checksums and the id of the same bytes.
//
// The package does not know clients or commands, and does not decide which blocks go by a ring.
package direct
