//go:build mpi

package mpi_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
	"cascadekv/internal/arena"
	"cascadekv/internal/testing/fabrictest"
)

// oneSided returns a fabric that copies whenever it may, and what it exposes.
func oneSided(t *testing.T) (*fabricmpi.Fabric, *fabrictest.Peer) {
	t.Helper()
	if world == nil {
		t.Skip("not started by a launcher: see run_test.go")
	}
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	f, err := fabricmpi.New(world, fabricmpi.Options{OneSidedFrom: 1, Region: fabrictest.Region, Memory: p.Memory()})
	if err != nil {
		t.Fatal(err)
	}
	said := f.Verdict().RMA
	t.Log(said)
	used := strings.HasPrefix(said, "used ")
	if !used && !strings.HasPrefix(said, "not ") || used && f.Verdict().MPI.Name == mpi.MPICH {
		t.Errorf("the probe of %v says %q", f.Verdict().MPI, said)
	}
	return f, p
}

// copied checks that copies were made exactly where the probe allowed them.
func copied(t *testing.T, f *fabricmpi.Fabric) {
	if used := strings.HasPrefix(f.Verdict().RMA, "used "); f.Self() == 0 && used != (f.Copies() > 0) {
		t.Errorf("%d copies, and the probe said %q", f.Copies(), f.Verdict().RMA)
	}
}

// TestOneSidedProbe has the probe come to an end that makes sense.
func TestOneSidedProbe(t *testing.T) {
	f, _ := oneSided(t)
	world.Barrier()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestOneSidedConform is the conformance suite with one-sided reads, as far as
// this MPI serves them: evictions under reads are in it. Before it, a suspect
// rank is read from, of which no copy may be started. That a rank dies is not
// tried here: docs/mpi.md tells why one-sided reads are off by default.
func TestOneSidedConform(t *testing.T) {
	f, p := oneSided(t)
	if f.Self() == 0 {
		last := fabric.Rank(world.Size() - 1)
		f.SetPeer(fabric.Peer{Rank: last, Incarnation: 1, State: fabric.Suspect})
		useSuspect(t, f, last)
		f.SetPeer(fabric.Peer{Rank: last, Incarnation: 1})
	}
	conform(t, f, p)
	copied(t, f)
}

// useSuspect reads from a suspect rank, which is right and makes no copy.
func useSuspect(t *testing.T, f *fabricmpi.Fabric, suspect fabric.Rank) {
	r := fabrictest.Remote{Fabric: f, Rank: suspect}
	var src fabric.Source
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it may not serve yet
		if src, err = r.Put(within(t, time.Minute), 1<<20, 5); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	dst, err := arena.MapAnonymous(src.Length)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(f.Read(within(t, time.Minute), suspect, src, dst.Bytes()), r.Evict(within(t, time.Minute), src))
	if err == nil {
		err = fabrictest.Check(dst.Bytes(), 5, 0)
	}
	if err != nil || f.Copies() != 0 {
		t.Errorf("a read from a suspect rank: %v, %d copies", err, f.Copies())
	}
}
