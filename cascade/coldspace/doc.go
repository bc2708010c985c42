// Package coldspace decides what the cold tier keeps of this rank: within a
// budget that a job's ranks and earlier jobs share, and when the file system is
// full. It gives up blocks, has the tier merge its files, empties files that
// cannot be merged, and adopts what nobody owns any more. It leaves files that are
// complete to the catalogue, and takes them back to merge them or to give blocks up.
//
// The package does not write blocks: see writeback. The arithmetic is in cascade/policy (Share, LowSpace).
package coldspace
