// Package slurm finds out about the job that a rank runs in: so far, which of
// the processes that were started together it is.
//
// Ranks are started by hand or by srun, and a job that ends sends SIGTERM to
// them like any other process manager. This package is reserved for
//
//	environment  which job, node and rank this is
//	hostlists    "node[1-4]" and back
//	launcher     one rank on each node of a job
//	drain        dirty blocks reach Lustre before the time limit
//	epilog       what a job leaves in /dev/shm is removed
//
// The seam for the rest is the store's Drain, which writes every dirty block to
// the cold tier, and SIGTERM to cascaded, which calls it. This package may
// import cascade and never the other way round; it asks Slurm nothing, starts
// nothing and moves no bytes itself.
package slurm
