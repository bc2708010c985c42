// Package gate decides when compactions of a Pebble database may begin: not before it
// is open, and not while it is being filled.
//
// The package does not choose what is compacted, or how many run at once: Pebble's scheduler,
// which it wraps, does.
package gate
