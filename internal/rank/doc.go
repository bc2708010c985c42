// Package rank is one rank of a job: it makes the tiers that a configuration asks
// for, opens the store on them, joins the other ranks, serves clients, and ends all
// of that with no block lost. Command cascaded is a command line around it.
//
// Start, Open and then Serve:
//
//	node.go      what the node lacks is logged, or refuses the start
//	levels.go    arena, host memory, lustre with its catalogue, read buffers
//	cascade      the store recovers what earlier incarnations left in the tiers
//	background   arena and lustre are watched, the catalogue's index is tuned
//	peers        fabric, node and membership
//	adopt.go     segments of ranks that are no more, and of earlier jobs
//	server       listeners; clients are answered in Serve
//
// End, Shutdown:
//
//	server       connections end
//	drain        dirty blocks are written to lustre, while other ranks read on
//	leave        the other ranks receive where the blocks lie, and the end
//	background   adoption and watching end
//	store        it drains what came meanwhile, and closes its tiers
//	peers        membership, node and fabric end
//	arena        its file is removed, unless it holds what is nowhere else
//
// An upgrade (upgrade.go) ends the store's use of lustre only, and leaves memory,
// sockets and connections to the program that takes over. Run (life.go) turns
// signals into calls of a rank, and reads the configuration again for a reload.
//
// Glossary
//
//	adopt    take over the segments of a rank that is no more
//	late     of a lustre file that did not answer at the start
//
// The package does not exit, install signal handlers or write to standard error,
// and decides nothing about blocks.
package rank
