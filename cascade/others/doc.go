// Package others is what this rank has to do with other ranks and earlier jobs: it
// publishes the changes of this rank's names, finds where blocks lie elsewhere,
// adopts parts of the cold tier that others left, and invalidates what the
// catalogue has of names that were changed here.
//
// The package does not move bytes of blocks: see package load.
package others
