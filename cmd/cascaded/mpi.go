//go:build mpi

package main

import (
	"time"

	"cascadekv/dht/fabric"
	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
)

// finalizePatience is how long a rank waits for the others to end MPI too. Some
// of them may be dead.
const finalizePatience = 5 * time.Second

type mpiWorld struct{ *mpi.World }

func startWorld() (world, error) {
	w, err := mpi.Start()
	if err != nil {
		return nil, err
	}
	return mpiWorld{w}, nil
}

func (w mpiWorld) rank() int                      { return w.Rank() }
func (w mpiWorld) share(p []byte) ([]byte, error) { return w.Share(p) }
func (w mpiWorld) fabric() (fabric.Fabric, error) { return fabricmpi.New(w.World) }
func (w mpiWorld) close() error                   { return w.Stop(finalizePatience) }
