// Package layouts keeps the layout of each namespace's blocks (block.Layout): what
// clients declared, and what tiers have on record. It is for clients that read blocks
// which they did not write.
//
// Glossary
//
//	declared  by a client of this rank, since it started
//
// The package does not decide anything by a layout, nor does the store: puts are not
// checked against it. It does not send layouts to other ranks, which read them in
// segments.
package layouts
