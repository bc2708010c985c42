//go:build mpi

package mpi

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
	"cascadekv/dht/mpi"
	"cascadekv/internal/arena"
)

// rmaOff is the verdict where nobody asked for one-sided reads.
const rmaOff = "off"

// Options say how a fabric uses MPI.
type Options struct {
	// OneSidedFrom has reads of at least so many bytes copy from the peer's
	// memory without the peer, where a probe in New shows that this works while
	// the peer sleeps. 0 is never: a peer that dies during such a copy can take
	// this process with it (docs/mpi.md, 6). It is 0 on all ranks or on none.
	OneSidedFrom int64

	// Region and Memory are what the others may copy from here: a region of the
	// Handler's, and all of its bytes. Memory must be mapped, and stay so until
	// the process ends. Nil is nothing.
	Region uint32
	Memory []byte
}

const (
	probeSize    = 4096
	probeSleep   = 200 * time.Millisecond // of the target, outside MPI
	probeHead    = 50 * time.Millisecond  // in which the target falls asleep
	probeLimit   = 50 * time.Millisecond  // for the copy
	probeTimeout = 30 * time.Second       // for ranks to come
)

// oneSided is what the driver needs for copies from peers' windows.
type oneSided struct {
	window *mpi.Window // nil: there are none
	from   int64
	peers  []exposed
}

// exposed is what a rank lets the others copy.
type exposed struct {
	region uint32
	size   int64
	at     uintptr // where it lies in that process
	pid    int     // 0: no copies from it
}

// copies starts to copy what o reads from the peer's window, if that is known
// to work. Copying from a process that has died may end this one, so that is
// looked up first.
func (d *driven) copies(o *op) bool {
	w := &d.direct
	if w.window == nil || o.src.Length < w.from || d.f.state(o.peer) != fabric.Alive {
		return false
	}
	p := &w.peers[o.peer]
	if p.pid == 0 || o.src.Region != p.region || o.src.Offset < 0 || o.src.Offset > p.size-o.src.Length {
		return false
	}
	if !p.lives() {
		p.pid = 0
		return false
	}
	slot, err := d.set.Rget(w.window, o.dst, int(o.peer), o.src.Offset)
	if err != nil {
		p.pid = 0 // any doubt ends it
		return false
	}
	d.keep(slot, o, nil)
	d.f.copies.Add(1)
	o.slot = slot
	return true
}

// lives reads a byte of the memory, as MPI will: a process that is being killed
// loses its memory before anything else shows that.
func (p *exposed) lives() bool {
	var b [1]byte
	local := []unix.Iovec{{Base: &b[0], Len: 1}}
	n, err := unix.ProcessVMReadv(p.pid, local, []unix.RemoteIovec{{Base: p.at, Len: 1}}, 0)
	return n == 1 && err == nil
}

// copied is the end of a copy. Whether the block was there all the time, its
// owner is asked now: a generation that is gone does not come back.
func (o *op) copied(r mpi.Done) {
	o.there.Store(true)
	if o.late != nil {
		close(o.late)
	}
	if r.Err != nil {
		o.f.driven.direct.peers[o.peer].pid = 0 // any doubt ends it
		o.fail(r.Err)
	}
	switch o.state.Load() {
	case opWaiting:
		o.control.b[3] = byte(kindCheck)
		o.control.post()
		o.control = nil
		return
	case opAbandoned:
		if o.left != nil {
			o.free()
		}
	}
	o.control.drop()
	o.control = nil
	o.forget()
}

// probe opens windows to all ranks if they serve copies while they sleep, and
// notes in v what it found. All ranks call it and come to the same end. An
// error means that the ranks can not agree.
func (d *driven) probe(o Options, v *Verdict) error {
	peers, here, err := d.meet(o)
	if err != nil {
		return fmt.Errorf("fabric mpi: probe of one-sided reads: %w", err)
	}
	if !here {
		v.RMA = "not used: ranks are on several machines or in several containers"
		return nil
	}
	m, err := arena.MapAnonymous(3 * probeSize)
	if err != nil {
		return err
	}
	p := prober{set: d.f.comm.NewSet(), rank: d.f.comm.Rank(), size: d.f.comm.Size(), memory: m.Bytes()}
	trial, failure := d.f.comm.NewWindow(p.memory[:probeSize])
	served := failure == nil
	if served, err = p.agree(served); err != nil {
		return err
	}
	if !served {
		v.RMA = notOffered(failure)
		return nil
	}
	if served, err = p.run(trial); err != nil {
		return err
	}
	if err := trial.Free(); err != nil {
		return err
	}
	if !served {
		v.RMA = "not used: a rank that sleeps does not serve them"
		return p.end(m)
	}
	window, failure := d.f.comm.NewWindow(o.Memory)
	if served, err = p.agree(failure == nil); err != nil {
		return err
	}
	if err := p.end(m); err != nil {
		return err
	}
	if !served {
		v.RMA = notOffered(failure)
		return nil
	}
	d.direct.window = window
	d.direct.from, d.direct.peers = o.OneSidedFrom, peers
	v.RMA = fmt.Sprintf("used from %d bytes: a rank that sleeps serves them", o.OneSidedFrom)
	return nil
}

// notOffered is the verdict where a rank got no window.
func notOffered(here error) string {
	if here == nil {
		return "not offered to another rank"
	}
	return "not offered: " + here.Error()
}

// meet exchanges what ranks need of each other. here is whether all are processes that
// can see each other's end.
func (d *driven) meet(o Options) (peers []exposed, here bool, err error) {
	all, err := d.f.comm.Gather([]int64{whereabouts(), int64(os.Getpid()), int64(o.Region), int64(len(o.Memory)), int64(uintptr(unsafe.Pointer(unsafe.SliceData(o.Memory))))})
	if err != nil {
		return nil, false, err
	}
	for _, r := range all {
		if r[0] != all[0][0] || r[0] == 0 {
			return nil, false, nil
		}
		peers = append(peers, exposed{pid: int(r[1]), region: uint32(r[2]), size: r[3], at: uintptr(r[4])})
	}
	return peers, true, nil
}

// whereabouts is a number of this boot and this space of process ids; 0 when it
// is not known.
func whereabouts() int64 {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/pid")
	if err != nil || err2 != nil {
		return 0
	}
	h := fnv.New64a()
	h.Write(boot)
	h.Write([]byte(space))
	return int64(h.Sum64() | 1)
}

// prober has the ranks take turns in sleeping and copying.
type prober struct {
	set        *mpi.Set
	rank, size int
	memory     []byte // exposed, copied into, agreed in
}

// end gives the prober's memory back.
func (p *prober) end(m *arena.Mapping) error {
	p.set.Free()
	return m.Close()
}

// run has first the even and then the odd ranks copy from their next one, which
// sleeps. Where there are several machines, some pair is on two.
func (p *prober) run(w *mpi.Window) (served bool, err error) {
	served = true
	for turn := range 2 {
		if _, err = p.agree(true); err != nil { // all are here
			return false, err
		}
		quick := true
		switch {
		case p.rank%2 != turn:
			time.Sleep(probeSleep)
		case p.rank+1 < p.size:
			time.Sleep(probeHead)
			start := time.Now()
			_, err := p.set.Rget(w, p.memory[probeSize:2*probeSize], p.rank+1, 0)
			quick = err == nil && p.wait() == nil && time.Since(start) < probeLimit
		}
		all, err := p.agree(quick)
		if err != nil {
			return false, err
		}
		served = served && all
	}
	return served, nil
}

// agree reports whether all ranks say yes.
func (p *prober) agree(yes bool) (bool, error) {
	b := p.memory[2*probeSize:]
	binary.NativeEndian.PutUint32(b, 0)
	if yes {
		b[0], b[3] = 1, 1 // positive in either byte order
	}
	if _, err := p.set.Imin(b); err != nil {
		return false, err
	}
	err := p.wait()
	return binary.NativeEndian.Uint32(b) != 0, err
}

// wait tests until nothing is under way.
func (p *prober) wait() error {
	for end := time.Now().Add(probeTimeout); p.set.Active() > 0; {
		done, err := p.set.Test(passSpins, true)
		if err != nil {
			return err
		}
		for _, r := range done {
			if r.Err != nil {
				return r.Err
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("the other ranks did not come in %v", probeTimeout)
		}
	}
	return nil
}
