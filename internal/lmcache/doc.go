// Package lmcache knows what is peculiar to the Redis clients of LMCache: keys that come in
// pairs, and a client that counts the bytes of replies instead of parsing them
// (docs/protocol.md §5).
//
// The package does not answer them, and knows nothing of connections.
package lmcache
