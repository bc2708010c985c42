// Package hbmbench measures copies of blocks between a GPU and host memory: by the
// copy engine of gpu/hbm, a copy for each block at places in any order, and by the tier over it, both against a plain copy of the same
// bytes of pinned memory, in turns.
//
// It also measures what names a block: SHA-256 on the CPU, and a table of ids (Tutti Fig. 3).
// Ids are computed from the copy in host memory, so that is where the hash has to be fast.
//
// Glossary
//
//	bounced  of blocks: put into the tier from memory that is not pinned, and read back there
//
// Every byte that comes back is compared. The package does not judge its figures, and on the
// stand-in for the driver its times mean nothing.
package hbmbench
