package mpi

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrWorldSize means that MPI found another number of processes than the
// launcher started: each of them would believe to be alone.
var ErrWorldSize = errors.New("mpi: the world has another size than the launcher started")

// Launch is a world as its launcher describes it in the environment of each of its
// processes.
type Launch struct {
	Size int    // processes; 0 when unknown
	From string // the variable that has it
}

// Launched reads from the environment how many processes were started.
// getenv is os.Getenv. A launcher inside a Slurm job speaks for itself: mpirun
// may use less of the job than there is.
func Launched(getenv func(string) string) Launch {
	for _, name := range []string{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"} {
		if getenv("SLURM_PROCID") == "" && name[0] == 'S' {
			continue // a batch script's environment, which is not a task's
		}
		if n, err := strconv.Atoi(getenv(name)); err == nil && n > 0 {
			return Launch{n, name}
		}
	}
	return Launch{}
}

// Check compares the launch with the size that MPI found. library is as
// Version.Name gives it; the error names the remedy.
func (l Launch) Check(size int, library string) error {
	if l.Size == 0 || l.Size == size {
		return nil
	}
	flag, launcher := "--mpi=pmi2", "mpiexec.mpich"
	if library == OpenMPI {
		flag, launcher = "--mpi=pmix", "mpirun.openmpi"
	}
	return fmt.Errorf("%w: %s=%d, but this %s sees %d: start it with srun %s or with %s",
		ErrWorldSize, l.From, l.Size, library, size, flag, launcher)
}

// settings are those of Open MPI with which its connections over TCP outlive the
// death of a process; other libraries ignore them. docs/mpi.md, Open MPI over TCP,
// has what happens without them.
var settings = []struct{ name, value string }{
	{"OMPI_MCA_opal_event_include", "epoll"}, // poll takes a socket that is closed, and then loops for ever
	{"OMPI_MCA_mpi_event_tick_rate", "100"},  // µs between looks at the sockets while no connection is counted, else 10,000
}

// setUp leaves settings in the environment, where MPI reads them, unless it has some
// of that name. lookup and set are os.LookupEnv and os.Setenv.
func setUp(lookup func(string) (string, bool), set func(name, value string) error) error {
	for _, s := range settings {
		if _, ok := lookup(s.name); ok {
			continue
		}
		if err := set(s.name, s.value); err != nil {
			return fmt.Errorf("mpi: %w", err)
		}
	}
	return nil
}
