//go:build !mpi

package fabricbench

import "context"

// Rank is one rank of the benchmark, which this program, built without
// MPI, can not be. Error: ErrNoMPI.
func Rank(context.Context, RankOptions) error { return ErrNoMPI }
