//go:build mpi

package bench

import (
	"context"
	"errors"
	"io"
	"time"

	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
)

// FabricRank is one rank of the benchmark, started by mpirun: see Fabric.
// memory is in bytes. It ends when rank 0 reads "quit" from in.
func FabricRank(ctx context.Context, memory int64, in io.Reader, out io.Writer) error {
	w, err := mpi.Start()
	if err != nil {
		return err
	}
	f, err := fabricmpi.New(w)
	if err != nil {
		return err
	}
	err = runFabricRank(ctx, f, memory, in, out)
	return errors.Join(err, f.Close(), w.Stop(5*time.Second))
}
