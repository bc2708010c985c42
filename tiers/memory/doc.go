// Package memory is a tier in mapped memory. Over a file under /dev/shm it is
// the shm tier, over anonymous memory the host tier; tiers/shm and tiers/host
// choose.
//
//	space       the mapping: what of it is ready, in use, or lent, and who waits
//	index       finds blocks by id and by generation
//	records     notes of blocks and names in the arena itself, so that a process
//	            that comes after a kill -9 finds them again; docs/format.md §2
//	outside     what other processes hold in place (Watch)
//	compaction  blocks are moved when free memory lies in too small pieces
//	Buffers     a pool of such memory in which nothing can be found
//
// Glossary
//
//	ready    reserved and touched; it grows in the background from the start, and
//	         only ready memory is handed out (untouched pages cost a put 17 times
//	         as much)
//	withdraw take a block whose bytes fail their checksum out of sight; its
//	         memory is freed when the last pin is gone
//	linger   be no block any more, and nobody's room yet: somebody outside the
//	         process still reads it in place (Watch)
//	lend     let sockets and pipes refer to a block's memory, which is then never
//	         written again: when the block is gone, its room gets new memory
//	         (docs/format.md §2.3)
//
// Payload bytes are written before the record that points to them, and a
// record disappears before the memory it points to is reused, so whatever
// instant the process dies at, every record that can be read is true;
// the checksums are verified again at recovery all the same.
//
// The package does not choose victims and holds no names but their records.
package memory
