//go:build !mpi

package main

import (
	"errors"

	"cascadekv/dht/fabric"
	"cascadekv/internal/config"
)

var errNoMPI = errors.New(`peers.fabric = "mpi": this cascaded was built without MPI; build it with scripts/mpi-build.sh, or use "tcp"`)

func openMPI(config.Config) (fabric.Fabric, error) { return nil, errNoMPI }
