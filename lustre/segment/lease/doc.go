// Package lease decides which run owns a directory of segments, and so may unlink and
// merge what lies there: the run that writes there, and after its end one that takes
// it over (docs/format.md §1.10).
//
// Glossary
//
//	observation  when somebody else's token was seen first, by this run's clock
//
// The package reads no segment and keeps no list of them: a store asks Verify before it
// acknowledges or removes anything, and Owns when it recovers what others left.
package lease
