//go:build mpi

package mpi

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// MaxTag is the largest tag that every library in use takes: Open MPI over UCX
// has the fewest.
const MaxTag = 8388606

// Any stands for every source or every tag in receives and probes.
const (
	AnySource = C.MPI_ANY_SOURCE
	AnyTag    = C.MPI_ANY_TAG
)

// Comm is a communicator: a world of messages of its own.
type Comm struct {
	c          C.MPI_Comm
	rank, size int
}

// Rank is this process's number.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of processes.
func (c *Comm) Size() int { return c.size }

// Done is one finished request.
type Done struct {
	Slot      int // of the Set
	Source    int // of a receive
	Tag       int // of a receive
	Bytes     int64
	Cancelled bool
	Err       error // *Error
}

// Set is requests that are tested together. A request is known by its slot,
// which is given out again after the request was reported as done. The methods
// of one Set must not be called concurrently.
type Set struct {
	comm  *Comm
	cap   int
	used  int // slots below it may be active
	free  []int
	reqs  *C.MPI_Request
	index *C.int
	stats *C.MPI_Status
	dones *C.cascade_done
	out   []Done
}

// NewSet returns an empty set. It lies in C memory until Free.
func (c *Comm) NewSet() *Set {
	s := &Set{comm: c}
	s.grow(64)
	return s
}

// Free gives the memory back. No request may be active.
func (s *Set) Free() {
	C.free(unsafe.Pointer(s.reqs))
	s.drop()
	s.cap, s.used, s.free, s.reqs = 0, 0, nil, nil
}

func (s *Set) drop() {
	C.free(unsafe.Pointer(s.index))
	C.free(unsafe.Pointer(s.stats))
	C.free(unsafe.Pointer(s.dones))
	s.index, s.stats, s.dones = nil, nil, nil
}

func (s *Set) grow(n int) {
	s.drop()
	s.reqs = (*C.MPI_Request)(C.realloc(unsafe.Pointer(s.reqs), C.size_t(n)*C.sizeof_MPI_Request))
	s.index = (*C.int)(C.malloc(C.size_t(n) * C.sizeof_int))
	s.stats = (*C.MPI_Status)(C.malloc(C.size_t(n) * C.sizeof_MPI_Status))
	s.dones = (*C.cascade_done)(C.malloc(C.size_t(n) * C.sizeof_cascade_done))
	all := unsafe.Slice(s.reqs, n)
	for i := s.cap; i < n; i++ {
		all[i] = C.cascade_request_null()
	}
	s.cap = n
}

// Active is the number of requests under way.
func (s *Set) Active() int { return s.used - len(s.free) }

// slot returns a free slot and its request.
func (s *Set) slot() (int, *C.MPI_Request) {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i, s.request(i)
	}
	if s.used == s.cap {
		s.grow(2 * s.cap)
	}
	s.used++
	return s.used - 1, s.request(s.used - 1)
}

func (s *Set) request(i int) *C.MPI_Request { return &unsafe.Slice(s.reqs, s.cap)[i] }

// post finishes what slot began: the slot stays with the request unless it
// could not be started.
func (s *Set) post(op string, i int, code C.int) (int, error) {
	if err := check(op, code); err != nil {
		*s.request(i) = C.cascade_request_null()
		s.free = append(s.free, i)
		return -1, err
	}
	return i, nil
}

// address is where b lies, which MPI may ignore for no bytes.
func address(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Isend starts sending b, which is not Go heap, and returns its slot.
func (s *Set) Isend(b []byte, to, tag int) (int, error) {
	i, r := s.slot()
	return s.post("MPI_Isend", i, C.cascade_isend(address(b), C.size_t(len(b)), C.int(to), C.int(tag), s.comm.c, r))
}

// Irecv starts receiving up to len(b) bytes into b, which is not Go heap, and
// returns its slot.
func (s *Set) Irecv(b []byte, from, tag int) (int, error) {
	i, r := s.slot()
	return s.post("MPI_Irecv", i, C.cascade_irecv(address(b), C.size_t(len(b)), C.int(from), C.int(tag), s.comm.c, r))
}

// Rget starts copying len(b) bytes at offset at of from's window into b, which
// is not Go heap, and returns its slot.
func (s *Set) Rget(w *Window, b []byte, from int, at int64) (int, error) {
	i, r := s.slot()
	return s.post("MPI_Rget", i, C.cascade_rget(address(b), C.size_t(len(b)), C.int(from), C.size_t(at), w.w, r))
}

// Imin starts an agreement: b, four bytes that are not Go heap, hold a number in
// this machine's byte order, and at the end the least of all processes'. All of
// them call it, in the same order.
func (s *Set) Imin(b []byte) (int, error) {
	i, r := s.slot()
	return s.post("MPI_Iallreduce", i, C.cascade_imin(address(b[:4]), s.comm.c, r))
}

// Gather gives every process what each has, by rank. All call it with as many
// numbers, and it waits for them: it is for starting.
func (c *Comm) Gather(mine []int64) ([][]int64, error) {
	n := len(mine)
	all := (*C.longlong)(C.malloc(C.size_t((c.size + 1) * n * 8)))
	defer C.free(unsafe.Pointer(all))
	words := unsafe.Slice((*int64)(unsafe.Pointer(all)), (c.size+1)*n)
	own := words[c.size*n:]
	copy(own, mine)
	code := C.cascade_gather(unsafe.Pointer(&own[0]), unsafe.Pointer(all), C.int(n), c.c)
	if err := check("MPI_Allgather", code); err != nil {
		return nil, err
	}
	byRank := make([][]int64, c.size)
	for r := range byRank {
		byRank[r] = append([]int64(nil), words[r*n:(r+1)*n]...)
	}
	return byRank, nil
}

// Cancel asks MPI to give up a receive. It is reported as done either way, if
// ever.
func (s *Set) Cancel(slot int) error { return check("MPI_Cancel", C.MPI_Cancel(s.request(slot))) }

// Test lets MPI work and reports the requests that are done. It returns as soon
// as there is one, else after so many spins, in which it leaves the core to
// others if yield is set. The result is valid until the next call.
func (s *Set) Test(spins int, yield bool) ([]Done, error) {
	var count, y C.int
	if yield {
		y = 1
	}
	code := C.cascade_testsome(s.reqs, C.int(s.used), C.int(spins), y, s.index, s.stats, s.dones, &count)
	if err := check("MPI_Testsome", code); err != nil {
		return nil, err
	}
	s.out = s.out[:0]
	for _, d := range unsafe.Slice(s.dones, s.cap)[:count] {
		i := int(d.index)
		s.out = append(s.out, Done{i, int(d.source), int(d.tag), int64(d.bytes), d.cancelled != 0, check("request", d.error)})
		*s.request(i) = C.cascade_request_null()
		s.free = append(s.free, i)
	}
	return s.out, nil
}

// Message is one that has arrived and that only its finder can receive.
type Message struct {
	Source, Tag int
	Bytes       int64
	m           C.MPI_Message
}

// Improbe looks for a message that has arrived. ok is false when there is none.
func (c *Comm) Improbe(from, tag int) (m Message, ok bool, err error) {
	var found C.int
	var d C.cascade_done
	code := C.cascade_improbe(C.int(from), C.int(tag), c.c, &found, &m.m, &d)
	m.Source, m.Tag, m.Bytes = int(d.source), int(d.tag), int64(d.bytes)
	return m, found != 0, check("MPI_Improbe", code)
}

// Imrecv starts receiving m into b, which is not Go heap and has room for it,
// and returns its slot. m must be of at most 1 GiB.
func (s *Set) Imrecv(m *Message, b []byte) (int, error) {
	if int64(len(b)) < m.Bytes || m.Bytes > 1<<30 {
		return -1, fmt.Errorf("mpi: a message of %d bytes does not fit into %d", m.Bytes, len(b))
	}
	i, r := s.slot()
	return s.post("MPI_Imrecv", i, C.MPI_Imrecv(address(b), C.int(m.Bytes), C.MPI_BYTE, &m.m, r))
}
