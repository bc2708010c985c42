// Package replay drives a cache with a trace as an inference engine would: for
// each request it probes for the longest cached prefix, gets what hits, puts
// what misses, and compares every byte of every hit with what was put.
//
// Glossary
//
//	target    a cache to replay against: a store in this process, or a live
//	          rank over its socket
//	session   one worker's use of a target
//	key       of a block: its hash id in hex; the id stands for the block's
//	          whole prefix, so the key does too
//	hit       a block that was served together with all blocks before it in
//	          its request
//	series    hits over the course of the replay
//	run       one replay of the trace against one fresh target; a report
//	          compares runs, usually of different policies
//
// The package measures and reports, and chooses no policy, starts no daemon,
// opens no store and prints no progress: callers hand it targets and callbacks.
package replay
