// Package lease decides which run owns a directory of segments, and so may unlink and
// merge what lies there: the run that writes there, and after its end one that takes
// it over (docs/format.md §1.10).
//
// Glossary
//
//	run          one process of one rank; it has a directory of its own
//	token        an empty file whose name says who owns the directory it is in
//	observation  when somebody else's token was seen first, by this run's clock
//
// The package reads no segment and keeps no list of them: a store asks Verify before it
// acknowledges or removes anything, and Owns when it recovers what others left.
package lease
