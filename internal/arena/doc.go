// Package arena is memory that block bytes live in: one mapping, carved up by
// an allocator whose waste is bounded, reserved and touched before it is used.
//
// Glossary
//
//	page       4 KiB, the unit of runs
//	slab       a run cut into equal cells for objects up to MaxCell bytes
//	tag        a byte kept for each page outside the Go heap: at the first page
//	           of a slab it tells the slab's class, so that a later process
//	           finds the cells again
//	reserve    make the file system commit the space of a mapping, so that
//	           touching it later can not raise SIGBUS
//	prefault   map the pages in, so that the first put does not pay for it
//	huge page  2 MiB that the kernel maps at once; a Mapping lies in them as
//	           far as the kernel has any
//	lent       of a huge page: somebody the process does not know of may look at
//	           it, so that it must not be written before it was replaced
//
// Allocator is pure bookkeeping on offsets; Mapping owns the memory. The package
// does not know what is stored, which tiers/memory does, and evicts nothing.
package arena
