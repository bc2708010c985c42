// Package index finds where blocks lie in segments: by block id, by name, and
// along a chain of names. It is an ordered index on node-local storage, kept by
// Pebble, and it is a cache: segments hold the truth, so there is no write-ahead
// log, and an index that cannot be used is thrown away and filled again.
// docs/format.md §5 describes its files, keys and values byte by byte.
//
// Glossary
//
//	run        names of one chain that lie next to each other: (run, position).
//	           It is called after its first name
//	link       the run in which a name lies that did not begin one
//	stray      a name that did not come in one batch with its block
//	mark       how far a segment is indexed, a number of the caller's
//	dead       of a segment that was deleted; nobody sees it any more
//	broken     a state after which all is a miss until Rebuild
//
// # Order of keys
//
// A request brings the names of its chain, head first, and wants to know how
// many blocks in front are stored and where. The store is given each name with
// that of its parent, never the whole chain, and a hash of the head alone would
// put thousands of conversations that share a system prompt between one block
// and the next. So names are put in runs: a name whose parent is the last of a
// run joins it, any other begins a run of its own, called after itself. A reader
// follows a run by stepping to the next key, and where the chain leaves it the
// name it looks for is itself the address of the run that goes on. So a chain
// costs one search for each branch and one step for each block, in one or two
// searches any name is found alone, and where a name was put is never a matter
// of right or wrong, only of speed.
//
// Probe steps through the chain and does not bisect it. That would be right only
// while presence is monotone along a chain, and whole segments go missing:
// deleted, purged, on a lost server. Stepping is exact with holes and, the keys
// being adjacent, fast enough.
//
// Each entry names its segment by a small number, and a table of numbers in
// memory has which are alive. Deleting a segment withdraws its number, in one
// step; its entries are passed over from then on and removed in the background
// once they are many. A Bloom filter over names, runs and ids, also of the lowest
// level, answers most searches for what is not there.
//
// # What survives
//
// Batches become durable in the order of their puts, at the latest with Sync or
// Close. After a crash the last of them are missing, and so are the marks that
// came with them: the caller compares Segments with the files that exist, puts
// what lies behind the marks and deletes segments that have no file. A directory
// of another format, of another campaign, or one that Pebble refuses is emptied.
//
// # Failures
//
// Pebble ends the process on some errors of its file system. Here the goroutine
// that would do so stops for ever, with what it had locked, and the index is
// broken: reads are misses, writes fail, no call hangs. All calls that may meet
// such a lock run on goroutines that can be left behind; readers take none of
// Pebble's locks. A database that stopped is never touched again, so its memory
// is lost; after a few of them Rebuild gives up.
//
// What can go wrong, what comes of it, and the test that shows it:
//
//	a file of the index is missing, cut or damaged when it is opened: emptied;
//	    when it is met later: broken                             TestDamage
//	an index of another format or campaign: emptied              TestOthersIndex
//	a file system that other nodes see: refused                  TestSharedFileSystemsAreRefused
//	another process has it open: refused                         TestOneProcess
//	an operation of the file system fails, of any kind, once Open has
//	    returned: served all the same, or broken                 TestFaults
//	Logger.Fatalf: the MANIFEST cannot be written or synced, or
//	    Pebble finds a contradiction in its state: broken        TestFatalErrorsBreakTheIndex
//	BackgroundError: a flush or compaction fails, which Pebble
//	    would try again for ever: broken                         TestFatalErrorsBreakTheIndex
//	the disk is full: broken; Rebuild fails until there is room  TestFullDisk
//	the directory is removed under a running process: broken     TestBrokenAtRunTime (lustre/catalogue)
//	DataCorruption, or an iterator's error: broken               TestDamage, TestFaults
//	a panic in a call of ours: broken                            TestPanicsBreakTheIndex
//	the disk hangs: calls end with their context, readers do not
//	    wait, Close and Retune end after CloseWait: broken       TestHungDisk
//	merging does not keep up: writes wait, or end with their
//	    context; compactions held back by Load begin             TestStallOpensTheGate
//	the process or the node ends: the last batches are missing,
//	    and the marks show                                       TestCrashKeepsAPrefix
//	it breaks again and again: broken until a restart            TestBrokenTooOften
//
// What cannot be caught is a panic on a goroutine of Pebble's own, which it has
// for mistakes in its code: it ends the process.
//
// The package does not read or write segments, decide what to keep, or choose
// its own tuning, and does not depend on tiers.
package index
