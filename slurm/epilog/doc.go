// Package epilog removes what a Slurm job has left on this node when it is over: ranks that
// outlived it, arena files, the shared memory of ranks that were killed, their sockets, and the
// directory with the secret of a launch.
//
// It is made for root's epilog on a node that others use at the same time. Which processes
// are the job's is looked up by root, who may read that; then the process becomes the job's
// user, for good, and kills and removes as that user. So nothing that belongs to another user
// can be hit, whatever names, links and races somebody puts in the way: the kernel refuses.
// Of that user's own, a process must be a cascaded that Slurm's variables say is the job's,
// and a file an arena whose first page says so (docs/format.md §2.2). Sockets and directories
// are those that slurm/notes has notes of.
//
// The package does not write blocks to lustre: the launcher has done so for ranks that were
// killed while it lived. It waits for no process beyond its context.
package epilog
