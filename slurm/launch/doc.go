// Package launch starts the ranks of a job, one on each node, as a step beside an
// engine, waits until they know each other, runs the engine, and has them drain and
// end after it. Outside Slurm it starts one rank on this machine.
//
// Prepare decides everything that can be decided before: nodes, addresses, the command
// line of srun, the environment of the engine. Plan.Run does it. The ranks' output,
// and srun's, goes to a file and is never read as data: whether the ring is whole is
// asked of this node's rank, whether the step runs of squeue, and the step is ended by
// scancel, since a signal to srun kills its tasks undrained.
//
// A rank that dies leaves the engine alone: what it had is a miss. The package does
// not restart ranks, and decides nothing about blocks.
package launch
