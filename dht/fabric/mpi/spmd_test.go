//go:build mpi

package mpi_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/fabrictest"
	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
)

// launched says that a launcher of run_test.go started this process as one rank
// of several.
const launched = "CASCADE_TEST_MPI"

var world *mpi.World

func TestMain(m *testing.M) {
	if os.Getenv(launched) == "" {
		os.Exit(m.Run())
	}
	var err error
	if world, err = mpi.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := world.Stop(5 * time.Second); err != nil {
		fmt.Fprintf(os.Stderr, "rank %d: %v\n", world.Rank(), err) // a known fault of MPICH's, and no failure of ours
	}
	os.Exit(code)
}

// rank returns this rank's fabric, or skips where there is no world.
func rank(t *testing.T) *fabricmpi.Fabric {
	t.Helper()
	if world == nil {
		t.Skip("not started by a launcher: see run_test.go")
	}
	f, err := fabricmpi.New(world)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRanksConform is the conformance suite on rank 0, and its peers on the
// others.
func TestRanksConform(t *testing.T) {
	f := rank(t)
	if f.Self() != 0 {
		serve(t, f)
		return
	}
	c := fabrictest.Config{Fabric: f}
	for r := 1; r < world.Size(); r++ {
		c.Peers = append(c.Peers, fabric.Peer{Rank: fabric.Rank(r), Incarnation: 1})
	}
	fabrictest.Run(t, c)
}

// serve answers the suite until it is over.
func serve(t *testing.T, f *fabricmpi.Fabric) {
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Quit():
	case <-time.After(4 * time.Minute):
		t.Errorf("%v was not told to quit", f.Self())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
