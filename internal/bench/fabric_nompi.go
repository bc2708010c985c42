//go:build !mpi

package bench

import "context"

// FabricRank is one rank of the benchmark, which this program, built without
// MPI, can not be. Error: ErrNoMPI.
func FabricRank(context.Context, FabricRankOptions) error { return ErrNoMPI }
