// Package fixedclient recognises LMCache's C++ client among those of Redis, by the
// commands that it sends: it takes replies by their length, and so can be told of a
// miss in one way only (docs/protocol.md §5).
//
// Glossary
//
//	half   one of the two keys under which LMCache's Python client stores a block: its
//	       bytes, or what describes them
//
// The package does not answer, and does not close connections.
package fixedclient
