// Package replay drives a cache with a trace as an inference engine would: for
// each request it probes for the longest cached prefix, gets what hits, puts
// what misses, and compares every byte of every hit with what was put.
//
// Glossary
//
//	target    a cache to replay against: a store in this process, or a live
//	          rank over its socket
//	series    hits over the course of the replay
//
// The package measures and reports, and chooses no policy, starts no daemon,
// opens no store and prints no progress: callers hand it targets and callbacks.
package replay
