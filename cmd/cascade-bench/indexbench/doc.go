// Package indexbench measures the ordered index of segments: look-ups one at a
// time on one goroutine, memory, opening it again, and rebuilding it from the
// footers of segments. The package does not judge its figures.
//
// Glossary
//
//	chain  1,024 blocks with names, each but the first the child of the one
//	       before; eight chains at a time share their first 128 blocks
//	group  chains that share their head
package indexbench
