// Package direct reads blocks of the disks of a node (gpu/nvme) straight into memory that a client shares, by a ring (gpu/gio)
// whose event words the client raises: no byte passes through shared memory or a thread of this process, but for the comparison
// of its checksum.
//
// Glossary
//
//	batch  blocks that are read once a word of the ring has reached a value: an IOCB
//
// A Ring is a region of gpu/gio with its engine, the files of a pool, and the memory that a client maps.
// A ring has the files that were ready when it was made, open for reading alone. What it can not read (a block that lies in another
// file, or not on whole pages) is for the caller to bring by another way, and so is a block that fails: the ring withdraws nothing.
//
// A client can write anything into its ring at any time. What this process believes of it is the end of an I/O, which
// only that client's own memory depends on, and no block counts as read whose bytes fail their checksum.
//
// The package does not know clients or commands, and does not decide which blocks are read by a ring.
package direct
