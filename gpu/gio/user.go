package gio

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// userEngine serves a region as the kernel's thread does, with pread and pwrite.
// I/Os end in any order.
type userEngine struct {
	r       *region
	buffers []buffer
	mem     []byte         // buffer 0 begins it
	files   []atomic.Int32 // of the server
	fault   func(IO) Fault

	jobs    chan job
	quit    chan struct{}
	all     sync.WaitGroup
	ended   chan struct{}
	servers []slotServer
}

// slotServer is what the engine knows of a slot, whatever lies in it.
type slotServer struct {
	head uint32 // entries taken; the poller's

	mu struct {
		sync.Mutex
		tail    uint32 // completions written
		pending uint32 // entries taken and not completed
	}
}

// job is an entry that passed.
type job struct {
	slot  uint32
	entry entry
}

// entry is a copy of a submission.
type entry struct {
	write  bool
	file   int
	offset int64
	at, n  uint64 // in mem
	user   uint64
}

func openUser(r *region, buffers []buffer, mem []byte, files []atomic.Int32, o Options) *userEngine {
	e := &userEngine{r: r, buffers: buffers, mem: mem, files: files, fault: o.Fault,
		jobs: make(chan job), quit: make(chan struct{}), ended: make(chan struct{}), servers: make([]slotServer, r.depth)}
	for i := range r.slots {
		s := r.slots[i].rings
		s.sqMask, s.cqMask, s.sqEntries, s.cqEntries = r.numIOCTX-1, 2*r.numIOCTX-1, r.numIOCTX, 2*r.numIOCTX
	}
	e.all.Go(e.poll)
	for range o.Workers {
		e.all.Go(e.work)
	}
	go func() {
		e.all.Wait()
		close(e.ended)
	}()
	return e
}

func (e *userEngine) stop()                 { close(e.quit) }
func (e *userEngine) done() <-chan struct{} { return e.ended }

// replace has nothing to do: each I/O looks its file up.
func (e *userEngine) replace(int, int) error { return nil }

// poll looks for entries until stop.
func (e *userEngine) poll() {
	pause := pacer{least: 50 * time.Microsecond, most: time.Millisecond}
	for {
		took := false
		for i := range e.r.depth {
			if e.pollSlot(i) {
				took = true
			}
		}
		if took {
			pause.reset()
		}
		select {
		case <-e.quit:
			return
		default:
		}
		if !took && !pause.sleep(e.quit) {
			return
		}
	}
}

// pollSlot takes the entries of a slot for which there is space among its
// completions.
func (e *userEngine) pollSlot(i uint32) (took bool) {
	s, own := &e.r.slots[i], &e.servers[i]
	n := min(s.rings.sqTail.Load()-own.head, e.r.numIOCTX)
	for ; n > 0 && e.reserve(i); n-- {
		words := load(&s.sqes[own.head&(e.r.numIOCTX-1)])
		own.head++
		s.rings.sqHead.Store(own.head)
		took = true
		entry, errno := check(words, e.buffers, len(e.files))
		if errno != 0 {
			e.complete(i, entry.user, -int32(errno))
			continue
		}
		select {
		case e.jobs <- job{i, entry}:
		case <-e.quit:
			return false
		}
	}
	return took
}

// reserve reports whether one more completion is sure to have its place, and
// takes it.
func (e *userEngine) reserve(i uint32) bool {
	own := &e.servers[i]
	own.mu.Lock()
	defer own.mu.Unlock()
	unread := own.mu.tail - e.r.slots[i].rings.cqHead.Load()
	if uint64(unread)+uint64(own.mu.pending) >= uint64(2*e.r.numIOCTX) {
		return false
	}
	own.mu.pending++
	return true
}

// complete writes a completion.
func (e *userEngine) complete(i uint32, user uint64, res int32) {
	s, own := &e.r.slots[i], &e.servers[i]
	own.mu.Lock()
	defer own.mu.Unlock()
	s.cqes[own.mu.tail&(2*e.r.numIOCTX-1)] = completion{user: user, res: res}
	own.mu.tail++
	own.mu.pending--
	s.rings.cqTail.Store(own.mu.tail)
}

// load copies an entry, each word of it once: whoever shares the region may
// change it meanwhile.
func load(s *submission) (w [8]uint64) {
	from := (*[8]uint64)(unsafe.Pointer(s))
	for i := range w {
		w[i] = atomic.LoadUint64(&from[i])
	}
	return w
}

// check refuses what the kernel would under the restrictions of the other
// engine, with the same errno. w is a copy.
func check(w [8]uint64, buffers []buffer, files int) (entry, unix.Errno) {
	s := (*submission)(unsafe.Pointer(&w))
	e := entry{user: s.user, write: s.opcode == opWriteFixed, file: int(s.file), offset: int64(s.offset), n: uint64(s.len)}
	switch {
	case s.opcode != opReadFixed && s.opcode != opWriteFixed || s.flags != flagFixedFile:
		return e, unix.EACCES
	case s.ioprio != 0 || s.rwFlags != 0 || s.personality != 0 || e.offset < 0:
		return e, unix.EINVAL
	case e.file < 0 || e.file >= files:
		return e, unix.EBADF
	case int(s.buffer) >= len(buffers):
		return e, unix.EFAULT
	}
	b := buffers[s.buffer]
	at := s.addr - b.address // wraps where addr lies before
	if s.addr < b.address || at > b.bytes || e.n > b.bytes-at {
		return e, unix.EFAULT
	}
	e.at = uint64(s.buffer)*BufferBytes + at
	return e, 0
}

// work does I/Os until stop.
func (e *userEngine) work() {
	for {
		select {
		case <-e.quit:
			return
		case j := <-e.jobs:
			e.complete(j.slot, j.entry.user, e.do(j))
		}
	}
}

// do is one I/O. It returns what a completion has: bytes, or a negative errno.
func (e *userEngine) do(j job) int32 {
	var f Fault
	if e.fault != nil {
		f = e.fault(IO{ID: j.slot, Index: int(j.entry.user), Write: j.entry.write})
	}
	if f.Until != nil {
		<-f.Until
	}
	if f.Errno != 0 {
		return -int32(f.Errno)
	}
	n := j.entry.n - min(uint64(f.Short), j.entry.n)
	p := e.mem[j.entry.at : j.entry.at+n : j.entry.at+n]
	io := unix.Pread
	if j.entry.write {
		io = unix.Pwrite
	}
	for {
		got, err := io(int(e.files[j.entry.file].Load()), p, j.entry.offset)
		if err == unix.EINTR {
			continue
		}
		if errno, ok := err.(unix.Errno); ok {
			return -int32(errno)
		}
		return int32(got)
	}
}
