package direct

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
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

	// Fault makes reads and writes fail, for tests; see gio.Options.
	Fault func(gio.IO) gio.Fault
}

// Ring is memory that blocks of some files are read into, and written from. It is safe for concurrent use.
type Ring struct {
	server *gio.Server
	queue  *gio.Queue
	has    []atomic.Bool // of the containers, by number, those that are files of the ring, under the same numbers
	peer   *net.UnixConn

	disks   *nvme.Tier               // whose files it has; nil: nobody's
	write   bool                     // it is to write there
	lot     atomic.Pointer[nvme.Lot] // where it writes; nil: it has none yet
	writing chan struct{}            // closed once it has one
	seek    seek
	late    atomic.Int64 // batches that have not ended in time
	probes  probes
	done    chan struct{}
}

// seek is the search of a ring for a lot.
type seek struct {
	sync.Mutex
	next  time.Time // before that there is none
	over  bool      // nor is there one while it runs, or once the ring has one, or has ended
	ended bool      // the ring takes none any more
	own   *nvme.Lot // the ring's until it has ended, whether it writes there or not
}

// seekEvery is how often at most a ring that is to write looks for a lot: that costs a look at all free GPU files.
const seekEvery = 5 * time.Second

const (
	// seekPatience is how long a ring that is made waits for its lot, which it has later otherwise.
	seekPatience = time.Second

	// servePatience bounds the rest: the kernel may have to find, clear and pin 16 GiB of memory, and asks file systems for what the files are.
	servePatience = time.Minute
)

// Over makes a ring over the files of disks, which are waited for until ctx ends. write: it is to write too, in a lot of theirs, which is the ring's until all
// of it is given back. While they have none for it, it looks for one with each batch of writes, every few seconds at most. The caller closes it. Errors: those of
// Open, tiers.ErrUnavailable.
func Over(ctx context.Context, disks *nvme.Tier, write bool, o Options) (*Ring, error) {
	containers, err := disks.Containers(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), servePatience)
	defer cancel()
	r, late, err := vfs.Within(ctx, func() (*Ring, error) { return over(containers, disks, write, o) }, func(r *Ring) {
		_ = r.Close(context.Background()) // nobody has it
	})
	if late {
		return nil, fmt.Errorf("direct: %w: a ring is not ready: %w", tiers.ErrUnavailable, err)
	}
	return r, err
}

// over is Over with the files, which it closes. It may wait for a disk that hangs.
func over(containers []*os.File, disks *nvme.Tier, write bool, o Options) (*Ring, error) {
	defer func() {
		for _, f := range containers {
			if f != nil {
				_ = f.Close() // the ring has a duplicate
			}
		}
	}()
	r, err := open(containers, o, disks, write)
	if err != nil || !write {
		return r, err
	}
	select {
	case <-r.look():
	case <-time.After(seekPatience):
	}
	return r, nil
}

// Open makes a ring that reads files of containers, by number, nil for none; it keeps copies of their descriptors. The caller
// closes it. Errors: ErrNoFiles, those of gio.Serve.
func Open(containers []*os.File, o Options) (*Ring, error) { return open(containers, o, nil, false) }

func open(containers []*os.File, o Options, disks *nvme.Tier, write bool) (*Ring, error) {
	r := &Ring{has: make([]atomic.Bool, len(containers)), disks: disks, write: write, writing: make(chan struct{}), done: make(chan struct{})}
	ready := 0
	for i, f := range containers {
		if f != nil {
			r.has[i].Store(true)
			ready++
		}
	}
	if ready == 0 || len(containers) > maxFiles {
		return nil, fmt.Errorf("%w: %d of %d", ErrNoFiles, ready, len(containers))
	}
	var err error
	r.server, err = gio.Serve(gio.Options{Depth: depth, NumIOCTX: numIOCTX, Files: containers, Replaces: write, DataBytes: o.Bytes, Engine: o.Engine, Fault: o.Fault})
	if err != nil {
		return nil, err
	}
	r.queue = r.server.Queue()
	r.queue.StartDevice()
	go r.end()
	return r, nil
}

// end gives the lot back once nothing writes there any more: a write that is late may come until then.
func (r *Ring) end() {
	defer close(r.done)
	<-r.server.Done()
	r.seek.Lock()
	r.seek.ended = true
	own := r.seek.own
	r.seek.Unlock()
	if own != nil {
		_ = own.Close() // its room stays in use then
	}
}

// look has a lot be looked for, if that is due, and returns a channel that is closed when that has ended. It waits for nothing.
func (r *Ring) look() <-chan struct{} {
	ended := make(chan struct{})
	r.seek.Lock()
	defer r.seek.Unlock()
	now := time.Now()
	if !r.write || r.seek.over || now.Before(r.seek.next) {
		close(ended)
		return ended
	}
	r.seek.over, r.seek.next = true, now.Add(seekEvery)
	go func() {
		defer close(ended)
		r.takeLot()
	}()
	return ended
}

// takeLot has the ring write, if there is a lot for it. It may wait for a disk that hangs, and is not called again before. What fails is tried again.
func (r *Ring) takeLot() {
	lot := r.disks.TakeLot()
	var files map[int]*os.File
	if lot != nil {
		ctx, cancel := context.WithTimeout(context.Background(), seekEvery)
		defer cancel()
		var err error
		if files, err = lot.Open(ctx); err != nil {
			_ = lot.Close() // it would be of no use
			lot = nil
		}
	}
	if r.keep(lot) {
		r.writeTo(lot, files)
	} else if lot != nil {
		_ = lot.Close() // as in end
	}
	for _, f := range files {
		_ = f.Close() // the ring has a duplicate
	}
}

// keep makes a lot the ring's, nil for none, and reports whether it is to write there.
func (r *Ring) keep(lot *nvme.Lot) bool {
	r.seek.Lock()
	defer r.seek.Unlock()
	r.seek.over = lot != nil
	if lot == nil || r.seek.ended {
		return false
	}
	r.seek.own = lot
	return true
}

// writeTo has the ring write to a lot, unless it is ending.
func (r *Ring) writeTo(lot *nvme.Lot, files map[int]*os.File) {
	for c, f := range files {
		if r.server.Replace(c, f) != nil {
			return // what was replaced can be written to
		}
		r.has[c].Store(true)
	}
	r.lot.Store(lot)
	close(r.writing)
}

// Writes reports whether the ring has files to write to by now.
func (r *Ring) Writes() bool { return r.lot.Load() != nil }

// Writing is closed once it has.
func (r *Ring) Writing() <-chan struct{} { return r.writing }

// Engine names the engine that serves the ring, and Fallback says why it is not io_uring, if it was to be.
func (r *Ring) Engine() string { return r.server.Engine() }

// Fallback is that of gio.Server.
func (r *Ring) Fallback() error { return r.server.Fallback() }

// Descriptors is about how many descriptors a ring keeps besides those of its files.
const Descriptors = depth + 8

// Files is how many files the ring has, each by a descriptor of its own, or will have at most.
func (r *Ring) Files() (n int) {
	for i := range r.has {
		if r.write || r.has[i].Load() {
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
