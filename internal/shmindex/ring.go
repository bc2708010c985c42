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
	fd      int
	mem     []byte
	drained uint64 // touches that Drain has passed on, or over
	noted   uint64 // likewise words of notes
	touches []uint64
	words   []uint64
	note    Note

	counted [maxCounts]counted
}

// Lookups counts what was looked for by the shared index: how many names, how
// many of them were there, and how many reads found nothing.
type Lookups struct{ Asked, Found, Missed uint64 }

// counted is what Lookups has returned of one namespace.
type counted struct {
	namespace string
	returned  Lookups
}

// NewRing makes a ring.
func NewRing() (*Ring, error) {
	fd, mem, err := slotted("cascade-touches", ringMagic, RingSlots, ringBytes)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(mem[ringSpaces:], maxCounts)
	binary.LittleEndian.PutUint32(mem[ringWords:], ringNotes)
	return &Ring{fd: fd, mem: mem}, nil
}

// slotted makes a sealed memfd of so many slots that a client is to write to.
func slotted(name, magic string, slots uint32, size int64) (int, []byte, error) {
	fd, mem, err := sealed(name, size)
	if err != nil {
		return -1, nil, err
	}
	le := binary.LittleEndian
	le.PutUint32(mem[offVersion:], ringVersion)
	le.PutUint32(mem[offBuckets:], slots)
	copy(mem, magic)
	return fd, mem, nil
}

// File is the ring's descriptor, for handing to its client; it stays the ring's.
func (r *Ring) File() (fd int, size int64) { return r.fd, ringBytes }

// News reports whether there are touches or notes that Drain has not passed on.
func (r *Ring) News() bool {
	return word(r.mem[ringHead:]) != r.drained || word(r.mem[ringNoted:]) != r.noted
}

// Drain passes on what the client has written since the last call, in order: touches, the last RingSlots
// of them at most and how many more there were, and notes with the namespace that each is of. A touch
// is a place of the table number and, in the upper half, that number's lower half. What is passed is
// the callee's until it returns. After most touches and keys of notes, but not within a note, it stops, and
// leaves the rest for the next call. It returns how many of most are left, 0 at least.
func (r *Ring) Drain(most int, touched func(touches []uint64, lost uint64), noted func(namespace string, n *Note)) (left int) {
	head := word(r.mem[ringHead:]) // first: what was noted before these touches is seen
	drain := func(until uint64) bool {
		n, lost := until-r.drained, uint64(0)
		if kept := RingSlots - min(head-until, RingSlots); n > kept {
			n, lost = kept, believable(n-kept)
		}
		some := min(n, uint64(most))
		from := until - n
		most -= int(some)
		r.touches, r.drained = r.touches[:0], from+some
		for i := from; i != from+some; i++ {
			r.touches = append(r.touches, word(r.mem[ringPlace+8*int(i%RingSlots):]))
		}
		if some > 0 || lost > 0 {
			touched(r.touches, lost)
		}
		return some == n
	}
	all := r.notes(func(namespace string, n *Note) bool {
		if ahead := uint64(n.After - uint32(r.drained)); ahead <= head-r.drained && !drain(r.drained+ahead) { // else they come next time, or it is nonsense
			return false
		}
		if most == 0 {
			return false
		}
		most -= min(most, len(n.Keys))
		if namespace != "" {
			noted(namespace, n)
		}
		return true
	})
	if all {
		drain(head)
	}
	return most
}

// Lookups calls fn with what the client has looked for since the last call, in
// each namespace of which it counts that.
func (r *Ring) Lookups(fn func(namespace string, l Lookups)) {
	for i := range r.counted {
		r.counted[i].read(r.mem[ringCounts+i*countBytes:][:countBytes], fn)
	}
}

func (c *counted) read(slot []byte, fn func(namespace string, l Lookups)) {
	n := atomic.LoadUint32((*uint32)(unsafe.Pointer(&slot[countName])))
	if n == 0 || n > maxCounted {
		return
	}
	name := slot[countName+4:][:n]
	if string(name) != c.namespace {
		*c = counted{namespace: string(name)}
	}
	now := Lookups{word(slot), word(slot[8:]), word(slot[16:])}
	since := Lookups{believable(now.Asked - c.returned.Asked), believable(now.Found - c.returned.Found), believable(now.Missed - c.returned.Missed)}
	if c.returned = now; since != (Lookups{}) {
		fn(c.namespace, since)
	}
}

func word(p []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&p[0]))) }

// believable is n, or 0 if no client counts so fast: this one writes nonsense.
func believable(n uint64) uint64 {
	if n > 1<<32 {
		return 0
	}
	return n
}

// Touch returns what a ring holds for a place of table number.
func Touch(number uint64, place uint32) uint64 { return number<<32 | uint64(place) }

// Close gives the ring up.
func (r *Ring) Close() {
	_ = unix.Munmap(r.mem)
	_ = unix.Close(r.fd)
}
