package shmindex

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is the touch ring of one client. Its methods belong to one goroutine at
// a time. The client may write anything into it at any time.
type Ring struct {
	fd   int
	mem  []byte
	told uint64 // touches that Drain has returned, or passed over
}

// NewRing makes a ring.
func NewRing() (*Ring, error) {
	fd, mem, err := slotted("cascade-touches", ringMagic, ringSlots, ringBytes)
	if err != nil {
		return nil, err
	}
	return &Ring{fd: fd, mem: mem}, nil
}

// slotted makes a sealed memfd of so many slots that a client is to write to.
func slotted(name, magic string, slots uint32, size int64) (int, []byte, error) {
	fd, mem, err := sealed(name, size)
	if err != nil {
		return -1, nil, err
	}
	le := binary.LittleEndian
	le.PutUint32(mem[offVersion:], version)
	le.PutUint32(mem[offBuckets:], slots)
	copy(mem, magic)
	return fd, mem, nil
}

// File is the ring's descriptor, for handing to its client; it stays the ring's.
func (r *Ring) File() (fd int, size int64) { return r.fd, ringBytes }

// Drain appends the touches since the last call to out, the last ringSlots of
// them at most, and returns how many more there were. Each is a place of the
// table number and, in the upper half, that number's lower half.
func (r *Ring) Drain(out []uint64) (touches []uint64, lost uint64) {
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.mem[ringHead])))
	n := head - r.told
	if n > ringSlots {
		n, lost = ringSlots, n-ringSlots
	}
	if lost > 1<<32 { // no client reads so fast: this one writes nonsense
		lost = 0
	}
	for i := head - n; i != head; i++ {
		out = append(out, atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.mem[ringPlace+8*int(i%ringSlots)]))))
	}
	r.told = head
	return out, lost
}

// Touch returns what a ring holds for a place of table number.
func Touch(number uint64, place uint32) uint64 { return number<<32 | uint64(place) }

// Close gives the ring up.
func (r *Ring) Close() {
	_ = unix.Munmap(r.mem)
	_ = unix.Close(r.fd)
}
