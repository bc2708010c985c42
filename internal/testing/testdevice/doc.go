// Package testdevice is a memory tier that stands for a device's memory: byte
// slices in a map that only the tier's own methods reach. Its slots and pins have
// no Bytes, so that code which touches a block directly panics.
//
// It may stand for a disk too: reads and writes fail or hang as Faults say, and
// Reopened is what a later process finds.
//
// It is for tests. The package writes no file, and is not fast.
package testdevice
