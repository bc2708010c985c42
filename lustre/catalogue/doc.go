// Package catalogue indexes what lies in the segments of a campaign, those of other ranks
// and earlier jobs and this rank's own, without a word of it on the heap: an ordered index
// on node-local storage (lustre/index) is filled with what the footers of their segments say, and
// survives restarts.
//
// Glossary
//
//	take in   bring the index up to date with the segments of some parts
//	shown     of a part that was in the last round of parts taken in: only names
//	          in its segments are found. What the index still has of others may
//	          have been withdrawn since
//	fresh     of names that became findable by the last round
//	withdrawn a name that was put, or deleted, elsewhere later than it was
//	          recorded here. It does not come back: the index has it as
//	          withdrawn, and so has a DROP in this rank's own segments, for when
//	          the index is lost
//
// # This rank's own
//
// The store of segments gives the catalogue each frame when it is durable, and the
// catalogue puts it into the index in one step (the two phases of SGLang-LSM §3.2).
// These names are found at once. A file that is complete in the index can be spilled:
// see lustre/segment.
//
// # Rounds
//
// AdoptParts lists the files of each part, reads the footers of those that are not
// in the index yet, of unsealed ones what counts now, and deletes from the index
// the segments whose files are gone. A sealed segment is read once in the life of
// the index. A part that was left out of two rounds is forgotten. Nothing is
// found before the first round, and everything of a round becomes findable at
// its end, so that a name is not shown that another part of the round withdraws.
//
// # Failures
//
// While the index is broken nothing is found, which is a miss. The next round
// throws away what is left of it and takes everything in anew; Err has the reason if
// that fails. An index that was lost costs reading the footers again.
//
// This rank's own files come back likewise; until then spilled ones are misses too.
//
// The package does not read payloads, and does not decide which
// parts are a rank's to take in.
package catalogue
