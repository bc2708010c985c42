//go:build !mpi

package bench

import (
	"context"
	"io"
)

// FabricRank is one rank of the benchmark, which this program, built without
// MPI, can not be. Error: ErrNoMPI.
func FabricRank(context.Context, int64, io.Reader, io.Writer) error { return ErrNoMPI }
