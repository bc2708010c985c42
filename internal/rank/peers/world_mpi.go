//go:build mpi

package peers

import (
	"errors"
	"log/slog"
	"os"
	"time"

	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
)

// finalizeTimeout is how long a rank waits for the others to end MPI too. Some
// of them may be dead, or go on.
const finalizeTimeout = 5 * time.Second

type mpiWorld struct {
	*mpi.World
	timeout time.Duration
	log     *slog.Logger
}

// startWorld starts MPI. drain is how long ranks may differ in ending.
func startWorld(drain time.Duration, log *slog.Logger) (world, error) {
	w, err := mpi.Start()
	if err != nil {
		return nil, err
	}
	timeout := finalizeTimeout
	if endsTogether(os.Getenv) {
		timeout += drain
	}
	return mpiWorld{w, timeout, log}, nil
}

// endsTogether reports whether the launcher kills all ranks when one ends
// without MPI_Finalize, as mpirun and mpiexec do: others might still be writing
// what only they have. srun, and mpirun with recovery, let them go on.
func endsTogether(getenv func(string) string) bool {
	mpirun := getenv("OMPI_COMM_WORLD_RANK") != "" && getenv("OMPI_MCA_orte_enable_recovery") != "1"
	mpiexec := getenv("MPI_LOCALRANKID") != ""
	return mpirun || mpiexec
}

func (w mpiWorld) rank() int                      { return w.Rank() }
func (w mpiWorld) size() int                      { return w.Size() }
func (w mpiWorld) share(p []byte) ([]byte, error) { return w.Share(p) }
func (w mpiWorld) fabric(o oneSided) (linked, error) {
	f, err := fabricmpi.New(w.World, fabricmpi.Options{OneSidedFrom: o.from, Region: o.region, Memory: o.memory})
	if err != nil {
		return nil, err
	}
	return mpiLink{f}, nil
}

// close ends MPI. That others do not, because they go on or are dead, is no
// failure of this rank, which has given back all that it holds. In a world that is
// not complete MPICH's MPI_Finalize waits for those that ended, or aborts the
// process when the network reports them gone; the process then ends without it,
// unless the launcher would kill the others for that.
func (w mpiWorld) close(incomplete bool) error {
	if incomplete && w.Version().Name != mpi.OpenMPI && !endsTogether(os.Getenv) {
		w.log.Info("a rank of this MPI world ended before; this one ends without MPI_Finalize", "mpi", w.Version().String())
		return nil
	}
	err := w.Stop(w.timeout)
	if errors.Is(err, mpi.ErrFinalize) {
		w.log.Warn("not all ranks end now; this one ends without MPI_Finalize", "waited", w.timeout.String())
		return nil
	}
	return err
}

// mpiLink describes in the rank's statistics, and so to cascade doctor, what the
// MPI below the fabric can do.
type mpiLink struct{ *fabricmpi.Fabric }

func (l mpiLink) Link() string { return l.Verdict().String() }
