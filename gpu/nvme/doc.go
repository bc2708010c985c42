// Package nvme is a memory tier on local disks, over gpu/store: the level below DRAM.
// A block takes as many GPU files as it needs, which are striped over the directories, one for each disk. The
// store knows what one file has of it by an id that is drawn anew each time that the block comes.
//
// Glossary
//
//	staging  host memory for blocks until the disk has them
//	arrival  blocks that a writer with a lot of its own writes to the disk by itself
//
// A slot is filled in staging memory. Commit makes the block visible at once, with no wait: a
// goroutine, the writer, puts all that was committed into the store in one batch. Until then the block is read
// from staging memory. So neither Reserve nor Commit nor Evict waits for a disk, and one that does not keep up shows as
// Reserve's ErrUnavailable, with ErrShort. Put and Sync wait until all is durable.
//
// Which parts are a block, its names and the layouts of namespaces are notes in the store's log, in the order
// in which things were done; docs/gpu-store.md §6 has their bytes. A block whose parts are not all there is none.
// A name has one record here, its newest, and points to one block: older records do not come back with
// other blocks.
//
// The tier's process addresses none of what it hands out: slots and pins have no Bytes, and there is no Region.
// Reads go by way of buffers of the tier, so that a caller that leaves a disk that hangs has its memory back.
//
// What can go wrong, what comes of it, and the test that shows it:
//
//	the process, the node or its power ends: the last changes are missing,
//	    and what was removed before the last Sync is not back            TestCrash
//	kill -9 at a random moment: likewise                                  TestKill
//	a flipped bit: ErrCorrupt, the block is withdrawn                     TestConformance
//	a disk that hangs: calls end, with their context where they have one;
//	    buffers and files stay in use until it answers                    TestHangingDisk, TestHangingOpen, TestFilesThatHang
//	a write fails: the block is gone, and no others are taken for a while TestFailedWrites
//	the disk is full: a smaller tier; later, for the log: no new blocks   TestFullDisk
//	another process uses a directory: ErrUnavailable                      TestOneProcess
//
// The package does not decide which blocks it has, verify them before they are read, or share them with
// other nodes.
package nvme
