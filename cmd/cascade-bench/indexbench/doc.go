// Package indexbench measures the ordered index of segments: look-ups one at a
// time on one goroutine, memory, opening it again, and rebuilding it from the
// footers of segments. The package does not judge its figures.
//
// Glossary
//
//	group  chains that share their head
package indexbench
