//go:build !mpi

package main

import "errors"

var errNoMPI = errors.New(`peers.fabric = "mpi": this cascaded was built without MPI; build it with scripts/mpi-build.sh, or use "tcp"`)

func startWorld() (world, error) { return nil, errNoMPI }
