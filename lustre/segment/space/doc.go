// Package space decides what to do when room is scarce: whether a write may begin
// (Room), which segments are worth rewriting for what is dead in them (Plan) or for
// their number (Join), and in which order their blocks are written (InChains).
//
// Glossary
//
//	shape  a segment's size and how much of it is live
//	short  of a file system: full or nearly so
//
// Plan, Join and InChains are pure. The package moves no block and removes no file.
package space
