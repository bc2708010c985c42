// Package traffic is what clients of a rank ask for and put, command by command, for who
// records it: fingerprints of keys in their order, who sent them, and no bytes of keys or
// values.
//
// Glossary
//
//	chained   of keys: each is the parent of the next
//
// The package does not know what a request of an engine is, of which several commands may
// be parts, and keeps nothing while nobody records.
package traffic
