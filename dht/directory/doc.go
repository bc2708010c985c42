// Package directory is the table that the home of a key keeps: where the block that the
// key names lies.
//
// Statements are whole truths, not changes: applying one twice, or an old one
// late, does no harm, so they may be repeated, reordered and lost by whatever
// carries them.
//
// A home has an entry for every name of the job that falls to it, of which most are cold:
// entries are kept packed, as bytes in large chunks, and unpacked one at a time. What is
// handed out is a copy.
//
// The package keeps the table and encodes statements for the wire, and sends
// nothing, reads no clock, and knows neither who is alive nor which keys belong
// here: package dht passes it on.
package directory
