// Package directory is what the home of a key knows: where the block that the
// key names lies (design.md §6).
//
// Glossary
//
//	statement  what one rank says of one name: put when, which block, where its
//	           copy is in memory and in the shared file system, or that it has
//	           none any more
//	entry      all statements about one name
//	owner      a rank whose statement tells of a copy
//	put stamp  when a name was put (block.Name.Seq); copies made by reading
//	           keep it, so it tells one put of a name from the next
//	version    when an owner said something; its newest statement is its truth
//	tombstone  the put stamp below which a deleted name may not come back
//
// Statements are whole truths, not changes: applying one twice, or an old one
// late, does no harm, so they may be repeated, reordered and lost by whatever
// carries them.
//
// The package keeps the table and encodes statements for the wire, and sends
// nothing, reads no clock, and knows neither who is alive nor which keys belong
// here: package dht tells it.
package directory
