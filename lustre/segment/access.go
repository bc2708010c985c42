package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"cascadekv/internal/uring"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/lustre/segment/trust"
)

// Switch decides whether something that not every machine can do is used.
type Switch uint8

// The values of a Switch.
const (
	Auto Switch = iota // where it works
	On                 // or Open fails
	Off
)

// Access is how a store reads and writes its files.
type Access struct {
	Direct    bool  // past the page cache
	Uring     bool  // batches through io_uring
	NoDirect  error // why not Direct: nil when it is switched off
	NoUring   error // why not Uring: likewise
	Alignment vfs.Alignment

	// Exposed: anybody can rename and remove what lies in the directory,
	// for it is everybody's and has no sticky bit.
	Exposed bool
}

// Access is how the store reads and writes its files, for logs and reports.
func (s *Store) Access() Access { return s.access.Access }

// access is what an open store holds for its reads and writes.
type access struct {
	Access
	direct *vfs.Direct
	ring   *uring.Ring
	gaps   *vfs.Scratch // for bytes between blocks
	guard  *trust.Guard
}

// gapPieces bounds the idle memory for gaps: what a batch uses at once.
const gapPieces = batchDepth

// openAccess makes the directory, finds out what works in it and makes o.FS
// what it says.
func openAccess(o *Options) (*access, error) {
	a := &access{gaps: vfs.NewScratch(maxGap, gapPieces), guard: trust.None(o.Dir)}
	machines := o.FS == nil
	if machines {
		o.FS = vfs.OS{Group: o.Group}
	}
	err := lease.MkdirAll(o.FS, o.Dir)
	if err != nil {
		return nil, unavailable("make the directory of segments: check path and permissions", err)
	}
	if machines {
		var readv vfs.Readv
		if a.guard, err = trust.NewGuard(o.Dir, fmt.Sprintf("probe-owner-rank%03d-%016x-%d.tmp", o.Rank, o.Incarnation, os.Getpid()), o.Group); err != nil {
			return nil, err
		}
		a.Exposed = a.guard.Exposed()
		if readv, err = a.openRing(o); err != nil {
			return nil, err
		}
		o.FS = a.guard.FS(readv)
	} else if o.Direct == Auto {
		o.Direct = Off // whoever brings a file system chooses what it is for
	}
	if o.Direct == Off {
		return a, nil
	}
	if a.Alignment, err = probeInTime(o); err == nil {
		a.direct = vfs.NewDirect(o.FS)
		a.Direct, o.FS = true, a.direct
		return a, nil
	}
	if o.Direct == On {
		a.close()
		return nil, unavailable("O_DIRECT does not work in "+o.Dir+": switch it off or to auto", err)
	}
	a.NoDirect = err
	return a, nil
}

// openRing makes the ring; without one its result is nil.
func (a *access) openRing(o *Options) (vfs.Readv, error) {
	if o.Uring == Off {
		return nil, nil
	}
	ring, err := uring.Open(o.Readers)
	if err != nil && o.Uring == On {
		return nil, unavailable("io_uring does not work: switch it off or to auto", err)
	}
	if a.NoUring = err; err != nil {
		return nil, nil
	}
	a.ring, a.Uring = ring, true
	return ring.Readv, nil
}

var probes atomic.Int64

// probePatience is how long a start waits for the probe: the servers that would
// hold the file may not answer.
const probePatience = 5 * time.Second

// probeInTime is probeDirect with an end. One that hangs goes on in the
// background, and removes its file.
func probeInTime(o *Options) (vfs.Alignment, error) {
	type answer struct {
		a   vfs.Alignment
		err error
	}
	got := make(chan answer, 1)
	probe := *o
	go func() {
		a, err := probeDirect(&probe)
		got <- answer{a, err}
	}()
	select {
	case got := <-got:
		return got.a, got.err
	case <-time.After(probePatience):
		return vfs.Alignment{}, fmt.Errorf("a probe has no answer after %v: check the file system's servers", probePatience)
	}
}

// probeDirect writes and reads a file in the directory.
func probeDirect(o *Options) (vfs.Alignment, error) {
	name := fmt.Sprintf("probe-rank%03d-%016x-%d-%d.tmp", o.Rank, o.Incarnation, os.Getpid(), probes.Add(1))
	a, err := vfs.ProbeDirect(o.FS, filepath.Join(o.Dir, name))
	if err == nil && a.Offset > format.PageSize {
		err = fmt.Errorf("%w: the file system asks for multiples of %d bytes, frames are multiples of %d", errors.ErrUnsupported, a.Offset, format.PageSize)
	}
	return a, err
}

// close gives back what is not in use. A ring with a read that hangs closes
// itself when that ends.
func (a *access) close() {
	a.gaps.Close()
	if a.direct != nil {
		a.direct.Close()
	}
	if a.ring != nil {
		given, cancel := context.WithCancel(context.Background())
		cancel()
		_ = a.ring.Close(given) // its error means that it goes on
	}
}
