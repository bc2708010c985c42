// Package layouts has how the blocks of each namespace are made (block.Layout), as
// clients declared it, or as segments have it. It is kept and told for those who read
// blocks without having written them.
//
// Glossary
//
//	declared  by a client of this rank, since it started
//
// The package does not decide anything by a layout, nor does the store: no put is
// refused for it and no block is cut by it. It does not tell other ranks: they read it
// in segments.
package layouts
