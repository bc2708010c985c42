// Package coldbench measures what blocks cost that a rank has in files alone: the heap
// for each, a start, a probe of a chain of them, and a get of one beside the read of its
// bytes.
//
// Glossary
//
//	cold  of a block: in no memory tier
//
// The rank is alone, and its index lies on a local disk. The package does not judge its
// figures, and does not measure reading as such: see lustrebench.
package coldbench
