// Package mpi is the part of MPI that CASCADE uses: a thin layer of cgo over a
// duplicate of the world communicator. Build tag mpi; without it the package
// only knows how many processes a launcher promised (Launched).
//
// Glossary
//
//	world      all processes that one launcher started
//	Set        requests that are tested together, in one call into C
//	window     memory that other processes read without our help (RMA)
//	launcher   mpirun, mpiexec or srun
//	watchdog   MPI_Finalize can hang; Stop gives up on it after a while
//
// Starting, rank, size and barriers come from github.com/sbromberger/gompi,
// unmodified; the rest, which it lacks, is here: nonblocking operations, error
// codes in place of aborts, counts beyond 2 GiB, windows. docs/mpi.md has how to
// build against Open MPI and MPICH.
//
// MPI is asked for MPI_THREAD_MULTIPLE, but calls of one Set must not overlap.
// Memory handed to a nonblocking operation must not be Go heap, and stays MPI's
// until the request is done. The package knows no message formats and no
// deadlines: dht/fabric/mpi does.
package mpi
