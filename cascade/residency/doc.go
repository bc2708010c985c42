// Package residency is what one rank holds: names and blocks, in which levels
// each block's bytes are, what keeps them there, and what is counted of it.
//
// State has the mutex that all parts of the store share. Changes of names come as
// lists (package names) that ApplyLocked carries out, in the tiers' records, the
// policies, the event log and, through a Watcher, in the parts above. View is a
// block that is pinned for reading.
//
// The package makes no room and reads no files: see eviction and load.
//
// Glossary
//
//	deep      of a level of memory: below Ladder.Host
//	stay      one residence of a block in one level
package residency
