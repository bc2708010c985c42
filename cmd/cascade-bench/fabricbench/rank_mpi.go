//go:build mpi

package fabricbench

import (
	"context"
	"errors"
	"strings"
	"time"

	"cascadekv/dht/fabric"
	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
)

// Rank is one rank of the benchmark, started by mpirun: see Run.
// It ends when rank 0 reads "quit".
func Rank(ctx context.Context, o RankOptions) error {
	w, err := mpi.Start()
	if err != nil {
		return err
	}
	m, err := o.open(fabric.Rank(w.Rank()))
	if err != nil {
		return err
	}
	f, err := fabricmpi.New(w, fabricmpi.Options{OneSidedFrom: 1, Memory: m})
	if err != nil {
		return err
	}
	o.oneSided = strings.HasPrefix(f.Verdict().RMA, "used ")
	err = runRank(ctx, f, o)
	err = errors.Join(err, f.Close())
	if stop := w.Stop(5 * time.Second); !errors.Is(stop, mpi.ErrFinalize) { // which MPICH may never do: the process ends anyway
		err = errors.Join(err, stop)
	}
	return err
}
