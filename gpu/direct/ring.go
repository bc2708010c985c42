package direct

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
)

// Words is how many event words a ring has, from 1 on.
const Words = gio.Events

const (
	depth    = 32   // batches at a time
	numIOCTX = 1024 // moves of a batch
	maxFiles = 16 << 10
)

// ErrNoFiles means that the disks have no file that could be read.
var ErrNoFiles = errors.New("direct: the disks have no files that are ready, or too many for a ring: try again later, or have larger files")

// Options describe a ring.
type Options struct {
	Bytes  int64  // of its memory, at most 16 GiB; whole pages
	Engine string // of gpu/gio, "" for the best that works

	// Lot, if there is one, is where the ring writes: its containers are open for that. It is the ring's, which closes it once all of the ring is
	// given back.
	Lot *nvme.Lot

	// Fault makes reads and writes fail, for tests; see gio.Options.
	Fault func(gio.IO) gio.Fault
}

// Ring is memory that blocks of some files are read into, and written from. It is safe for concurrent use.
type Ring struct {
	server *gio.Server
	queue  *gio.Queue
	lot    *nvme.Lot // nil: it only reads
	done   <-chan struct{}
	files  []int32 // of containers, by number, the file of the ring; -1: none
	peer   *net.UnixConn
}

// Over makes a ring over the files of disks. write: it writes too, if they have a lot; o.Lot is not used. The caller closes it. Errors: those
// of Open, tiers.ErrUnavailable.
func Over(disks *nvme.Tier, write bool, o Options) (*Ring, error) {
	containers, err := disks.Containers()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range containers {
			if f != nil {
				_ = f.Close() // the ring has a duplicate
			}
		}
	}()
	if o.Lot = nil; write {
		o.Lot = disks.TakeLot()
	}
	if o.Lot != nil {
		if err := o.Lot.OpenFor(containers); err != nil {
			return nil, errors.Join(err, o.Lot.Close())
		}
	}
	return Open(containers, o)
}

// Open makes a ring over the files of containers, by number, nil for none; it keeps copies of their descriptors. The caller
// closes it. Errors: ErrNoFiles, those of gio.Serve.
func Open(containers []*os.File, o Options) (*Ring, error) {
	r, err := open(containers, o)
	switch {
	case o.Lot == nil:
	case err != nil:
		err = errors.Join(err, o.Lot.Close())
	default:
		done := make(chan struct{})
		r.done = done
		go func() {
			defer close(done)
			<-r.server.Done() // a write that is late may still come before
			_ = o.Lot.Close() // its room stays in use then
		}()
	}
	return r, err
}

func open(containers []*os.File, o Options) (*Ring, error) {
	r := &Ring{files: make([]int32, len(containers)), lot: o.Lot}
	var files []*os.File
	for i, f := range containers {
		if r.files[i] = -1; f != nil {
			r.files[i] = int32(len(files))
			files = append(files, f)
		}
	}
	if len(files) == 0 || len(files) > maxFiles {
		return nil, fmt.Errorf("%w: %d", ErrNoFiles, len(files))
	}
	var err error
	r.server, err = gio.Serve(gio.Options{Depth: depth, NumIOCTX: numIOCTX, Files: files, DataBytes: o.Bytes, Engine: o.Engine, Fault: o.Fault})
	if err != nil {
		return nil, err
	}
	r.queue, r.done = r.server.Queue(), r.server.Done()
	r.queue.StartDevice()
	return r, nil
}

// Writes reports whether the ring has files to write to.
func (r *Ring) Writes() bool { return r.lot != nil }

// Engine names the engine that serves the ring, and Fallback says why it is not io_uring, if it was to be.
func (r *Ring) Engine() string { return r.server.Engine() }

// Fallback is that of gio.Server.
func (r *Ring) Fallback() error { return r.server.Fallback() }

// Descriptors is about how many descriptors a ring keeps besides those of its files.
const Descriptors = depth + 8

// Files is how many files the ring has, each by a descriptor of its own.
func (r *Ring) Files() (n int) {
	for _, f := range r.files {
		if f >= 0 {
			n++
		}
	}
	return n
}

// Send hands the ring and its memory to the client at the other end of a connection, which is the ring's from then on, also
// after an error. When it is closed the client knows that the ring is closed. Errors: those of the connection.
func (r *Ring) Send(c *net.UnixConn) error {
	r.peer = c
	return r.server.Send(c)
}

// DataFile duplicates the descriptor of the ring's memory.
func (r *Ring) DataFile() (*os.File, error) { return r.server.DataFile() }

// Close ends the ring: nothing begins any more, and those under way are waited for until ctx ends. After an error the
// memory stays until the disk has answered. No batch may be begun or looked at any more. Errors: gio.ErrBusy.
func (r *Ring) Close(ctx context.Context) error {
	err := r.server.Close(ctx)
	if r.peer != nil {
		_ = r.peer.Close() // nothing was written but the descriptors
	}
	return errors.Join(err, r.queue.Close())
}

// Done is closed when everything of a closed ring is given back.
func (r *Ring) Done() <-chan struct{} { return r.done }
