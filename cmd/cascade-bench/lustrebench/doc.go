// Package lustrebench compares segments with one file per block in the form of
// CASCADE Table I, batches with single reads, and reads with fio, on any file
// system. What each side does is in the result, as Method. The package does not
// judge its figures.
//
// Glossary
//
//	set   blocks of one size in memory, and buffers to read them into
//	form  one way to lay blocks out in files: segments, a file for each block,
//	      one long file
//	kept  blocks that one run writes and another one reads, cold
package lustrebench
