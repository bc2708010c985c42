// Package others exchanges with other ranks and earlier jobs what each has: it
// publishes the changes of this rank's names, finds where blocks lie elsewhere,
// adopts parts of the cold tier that others left, and invalidates what the
// catalogue has of names that were changed here.
//
// The package does not move bytes of blocks: see package load.
package others
