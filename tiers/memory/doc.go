// Package memory is a tier in mapped memory. Over a file under /dev/shm it is
// the shm tier, over anonymous memory the host tier; tiers/shm and tiers/host
// choose.
//
// Glossary
//
//	slot     the memory of one block, published (in the map) or still filling
//	record   a small self-describing note in the arena itself, so that a
//	         process that comes after a kill -9 finds the blocks again; the
//	         byte layout is docs/format.md §2
//	ready    how much of the arena is reserved and touched; it grows in the
//	         background from the start, and only ready memory is handed out
//	         (untouched pages cost a put 17 times as much)
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
