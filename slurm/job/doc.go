// Package job describes the Slurm job that this process runs in: its nodes, this
// process's place among those that were started together, its memory and its end.
//
// Read takes all that is in Slurm's variables; they are those of the job's start, and
// cost nothing. Query asks slurmctld, through scontrol, for what changes or is in no
// variable: the end that the time limit sets, the nodes that are left, restarts.
//
// A heterogeneous job is several jobs, its components, each with nodes and memory of
// its own. What one srun starts is a step; a batch script is in none, whatever its
// SLURM_PROCID is.
//
// Outside Slurm Read returns ErrOutside. The package starts no step, sends no signal
// and changes nothing about a job.
package job
