//go:build !mpi

package peers

import (
	"errors"
	"log/slog"
	"time"
)

var errNoMPI = errors.New(`peers.fabric = "mpi": this cascaded was built without MPI; build it with scripts/mpi-build.sh, or use "tcp"`)

func startWorld(time.Duration, *slog.Logger) (world, error) { return nil, errNoMPI }
