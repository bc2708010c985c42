// Package store keeps an engine's blocks on local NVMe, laid out so that a layer of many
// blocks is one batch of transfers (Tutti §3.1): an object for the keys and one for the
// values of each layer of a block, in a pool of files that is made, and written over, once:
// the first when the store is opened, the others while it is in use.
//
// Glossary
//
//	object      the keys, or the values, of one layer of one block
//	GPU file    place for one block: two objects for each layer of the model
//	container   a file on one disk, with a share of the objects of many GPU files
//	engine slot where an engine keeps one block in its own memory
//	scatter     of a table: which pieces of memory an object consists of
//	register    make a block visible, by a record in the log
//	lot         containers in which one writer writes alone, by itself
//
// The object with number o of GPU file g lies in directory (g + o) mod D: a layer of many
// blocks takes all D disks evenly. Where it lies there follows by arithmetic, so
// the table of blocks has one number for each, and no file of the pool that is in use is
// grown or removed.
//
// A put has three steps, in this order: Reserve takes GPU files, StoreLayer writes
// objects and Commit makes them durable, and then registers them in the log with
// the CRC32C of each object. A get pins blocks (Retrieve) and reads them layer by layer
// (RetrieveLayer), each object verified. Both cost one batch for each layer. A GPU file is used
// again only when the record that removes its block is durable. So the end of a
// process or of the node at any moment, and a bit that the disk flips, are misses and
// never wrong bytes. The log also keeps records of the store's user, opaque here (Notes). docs/gpu-store.md §5 describes the files byte by byte.
//
// The log is this package's own. lustre/index orders the names of a campaign and
// can be filled again from segments that describe themselves; here objects are bare
// bytes, the log is all there is, and it is bounded by the pool, so it lies in memory too.
//
// What can go wrong, what comes of it, and the test that shows it:
//
//	the process, the node or its power ends: the last blocks are missing  TestCrash
//	kill -9 at a random moment: likewise                                  TestKill
//	both, of notes: those before one that is there are there as well     TestNotesCrash
//	a flipped bit in an object: ErrCorrupt, the block is forgotten        TestFlippedBit
//	a flipped bit in the log: what follows it is missing                  TestDamagedLog
//	the disk is full when the pool is made: a smaller pool                TestFullDisk
//	the disk fails while the pool is made: likewise                       TestGrowthEnds
//	the disk is full for the log: puts fail, gets go on                   TestFullLog
//	a disk that hangs: calls end with their context, memory and files
//	    stay in use until it answers                                      TestHangingDisk
//	reads or writes fail: misses; the block is not registered             TestErrors
//	another model, another number of directories, one that is missing or
//	    in another place: what does not belong together is made anew      TestOtherPools
//	another process has it open: ErrUnavailable                           TestOneProcess
//	whoever writes to a lot writes anything there: misses, of blocks that
//	    were put there; the end of the process meanwhile: likewise        TestLot, TestLotCrash
//
// The package does not decide which blocks stay, hash what it is given, or touch
// device memory: a Ring moves the bytes, and has their CRC32C.
package store
