package mixed

import (
	"context"
	"errors"
	"sync"

	"cascadekv/dht/fabric"
)

// Options are the two fabrics of one rank, which the mixed one closes.
type Options struct {
	World       fabric.Fabric
	Size        int    // ranks of the world: those below it
	Incarnation uint64 // of all of them
	Guests      fabric.Fabric
}

// Fabric is a fabric.Fabric. Make one with New.
type Fabric struct {
	o Options

	mu struct {
		sync.RWMutex
		newest map[fabric.Rank]uint64 // incarnation of each rank that SetPeer named
	}
}

var (
	_ fabric.Fabric      = (*Fabric)(nil)
	_ fabric.BatchReader = (*Fabric)(nil)
)

// New returns the fabric of both.
func New(o Options) *Fabric {
	f := &Fabric{o: o}
	f.mu.newest = map[fabric.Rank]uint64{}
	return f
}

// Name implements fabric.Fabric: it is the world's.
func (f *Fabric) Name() string { return f.o.World.Name() }

// Self implements fabric.Fabric.
func (f *Fabric) Self() fabric.Rank { return f.o.World.Self() }

// Addr implements fabric.Fabric: where guests reach this rank.
func (f *Fabric) Addr() string { return f.o.Guests.Addr() }

// Serve implements fabric.Fabric.
func (f *Fabric) Serve(h fabric.Handler) error {
	return errors.Join(f.o.World.Serve(h), f.o.Guests.Serve(h))
}

// SetPeer implements fabric.Fabric. Who takes over a native's number ends what was under
// way to that native.
func (f *Fabric) SetPeer(p fabric.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Incarnation < f.mu.newest[p.Rank] {
		return
	}
	f.mu.newest[p.Rank] = p.Incarnation
	if f.native(p.Rank, p.Incarnation) {
		f.o.World.SetPeer(p)
		return
	}
	f.o.Guests.SetPeer(p)
	if f.inWorld(p.Rank) {
		p.State = fabric.Gone
		f.o.World.SetPeer(p)
	}
}

func (f *Fabric) inWorld(r fabric.Rank) bool { return int64(r) < int64(f.o.Size) }

func (f *Fabric) native(r fabric.Rank, incarnation uint64) bool {
	return f.inWorld(r) && incarnation == f.o.Incarnation
}

// via is the fabric that reaches a rank. Of a rank of the world nothing may be known yet.
func (f *Fabric) via(r fabric.Rank) fabric.Fabric {
	f.mu.RLock()
	defer f.mu.RUnlock()
	incarnation, known := f.mu.newest[r]
	if f.native(r, incarnation) || !known && f.inWorld(r) {
		return f.o.World
	}
	return f.o.Guests
}

// Call implements fabric.Fabric.
func (f *Fabric) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	return f.via(to).Call(ctx, to, req)
}

// Read implements fabric.Fabric.
func (f *Fabric) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	return f.via(from).Read(ctx, from, src, dst)
}

// ReadBatch implements fabric.BatchReader.
func (f *Fabric) ReadBatch(ctx context.Context, from fabric.Rank, reads []fabric.Read) {
	fabric.ReadBatch(ctx, f.via(from), from, reads)
}

// Close implements fabric.Fabric.
func (f *Fabric) Close() error {
	return errors.Join(f.o.Guests.Close(), f.o.World.Close())
}
