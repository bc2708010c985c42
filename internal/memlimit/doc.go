// Package memlimit reports how much memory this process may still take before
// the kernel ends something for it: what its control groups leave, of version 1
// or 2, and what the node has available. Of the same groups it reads the limit of
// processes and threads.
//
// Glossary
//
//	limit  the least of memory.max and memory.high (version 2) or
//	       memory.limit_in_bytes (version 1) of the control groups that this
//	       process is in and of those above them; Slurm, systemd and containers
//	       set it
//	left   the limit without what is held, or what the node has available if
//	       that is less
//
// Swap does not count: shared memory that is swapped out is no cache. The package
// reads files below /proc and /sys/fs/cgroup, each time it is asked, and sets no
// limit.
package memlimit
