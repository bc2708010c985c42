package bench

import "errors"

// Errors of this package. Test with errors.Is.
var (
	ErrNoRedis   = errors.New("bench: redis-server is not installed: apt-get install redis-server")
	ErrNoRank    = errors.New("bench: cascaded is not beside this program nor in PATH: make build")
	ErrStart     = errors.New("bench: a server did not start")
	ErrNotQuiet  = errors.New("bench: a server does not come to rest; measure on an idle one")
	ErrWrong     = errors.New("bench: wrong bytes came back")
	ErrTooSmall  = errors.New("bench: values are too small to tell apart")
	ErrBadOption = errors.New("bench: bad option")
	ErrNoMPI     = errors.New("bench: built without MPI: build with scripts/mpi-build.sh")
	ErrNoSource  = errors.New("bench: the source tree is not above the working directory nor above this program")
	ErrBuild     = errors.New("bench: a program of the benchmark can not be built")
	ErrWorld     = errors.New("bench: a world of two ranks failed")
)
