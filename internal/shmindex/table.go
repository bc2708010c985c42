package shmindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrFull means that both buckets of a name are full: a larger table is needed.
var ErrFull = errors.New("shmindex: no place is left for a name")

// Options choose a table.
type Options struct {
	Names  int      // that it is to have room for
	Number uint64   // of the table among those of this process, from 1
	Arena  int64    // bytes of the file that entries point into, 0: none
	Tiers  []string // by the numbers that entries use, at most 8
}

// Table is one table. Its methods belong to one goroutine at a time; clients
// read it at any time.
type Table struct {
	fd     int
	mem    []byte
	mask   uint32
	number uint64
	used   int
	keeper *keeper
}

// New makes an empty table that is kept and whose misses are not final.
// The error names what the kernel lacks.
func New(o Options) (*Table, error) {
	buckets := bucketsFor(o.Names)
	size := int64(headerBytes) + int64(buckets)*lane*(1+bucketSlots)
	fd, mem, err := sealed("cascade-index", size)
	if err != nil {
		return nil, err
	}
	t := &Table{fd: fd, mem: mem, mask: buckets - 1, number: o.Number}
	if err = kernelKeeps(); err == nil {
		t.keeper, err = keep(t.word(offOwner))
	}
	if err != nil {
		t.release()
		return nil, err
	}
	le := binary.LittleEndian
	le.PutUint32(mem[offVersion:], tableVersion)
	le.PutUint32(mem[offBuckets:], buckets)
	le.PutUint64(mem[offSize:], uint64(size))
	le.PutUint64(mem[offNumber:], o.Number)
	le.PutUint64(mem[offArena:], uint64(o.Arena))
	for i, name := range o.Tiers[:min(len(o.Tiers), maxTiers)] {
		copy(mem[offTiers+i*tierBytes:][:tierBytes], name)
	}
	// From here on only this mapping can be written to, whoever opens the file;
	// kernels before 5.1 can not promise that.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	atomic.StoreUint32(t.word(offState), stateUsed)
	copy(mem, tableMagic)
	return t, nil
}

// bucketsFor returns the buckets in which so many names fill two thirds.
func bucketsFor(names int) uint32 {
	want := uint64(max(names, 1)) * 3 / 2 / bucketSlots
	return uint32(1) << min(max(bits.Len64(want), 4), 31)
}

// sealed makes a memfd of size bytes, mapped, that keeps its size.
func sealed(name string, size int64) (int, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("shmindex: %w", os.NewSyscallError("memfd_create", err))
	}
	mem, err := mapFile(fd, size)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("shmindex: %d bytes: %w", size, err)
	}
	return fd, mem, nil
}

func mapFile(fd int, size int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// File opens the table for reading; the caller closes the descriptor. size is
// in bytes.
func (t *Table) File() (fd int, size int64, err error) {
	fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", t.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("shmindex: open for reading: %w", os.NewSyscallError("open", err))
	}
	return fd, int64(len(t.mem)), nil
}

// Number distinguishes one table of this process from another.
func (t *Table) Number() uint64 { return t.number }

// Places is how many names fit at most; a place is below it.
func (t *Table) Places() int { return (int(t.mask) + 1) * bucketSlots }

// Crowded reports whether the table should be replaced soon.
func (t *Table) Crowded() bool { return t.used*10 > t.Places()*7 }

// SetFinal publishes to clients whether a name that is not in the table is nowhere.
func (t *Table) SetFinal(final bool) {
	n := uint32(0)
	if final {
		n = 1
	}
	if w := t.word(offFinal); atomic.LoadUint32(w) != n {
		atomic.StoreUint32(w, n)
	}
}

// SetLoads publishes to clients how long loads from each tier take.
func (t *Table) SetLoads(tiers ...Load) {
	for i, l := range tiers[:min(len(tiers), maxTiers)] {
		p := t.mem[offLoads+i*loadBytes:]
		put(p, uint64(max(0, l.Latency)))
		put(p[8:], uint64(max(0, l.PerByte)*1e6))
	}
}

// Insert gives f, which is not in the table, a place. Errors: ErrFull.
func (t *Table) Insert(f Fingerprint, e Entry) (place uint32, err error) {
	a, b := f.buckets(t.mask)
	free := func(bucket uint32) (slot, n int) {
		slot = -1
		for i := range bucketSlots {
			if atomic.LoadUint64(t.tag(bucket*bucketSlots+uint32(i))) == 0 {
				slot, n = i, n+1
			}
		}
		return slot, n
	}
	slot, n := free(a)
	if other, m := free(b); m > n {
		a, slot, n = b, other, m
	}
	if n == 0 {
		return 0, ErrFull
	}
	place = a*bucketSlots + uint32(slot)
	t.write(place, &f, e)
	atomic.StoreUint64(t.tag(place), f.tag())
	t.used++
	return place, nil
}

// Update replaces what a place has of its name.
func (t *Table) Update(place uint32, e Entry) { t.write(place, nil, e) }

// Remove empties a place.
func (t *Table) Remove(place uint32) {
	atomic.StoreUint64(t.tag(place), 0)
	t.write(place, nil, Entry{})
	t.used--
}

// Fingerprint returns whose place it is.
func (t *Table) Fingerprint(place uint32) Fingerprint {
	return Fingerprint(t.entry(place)[entryPrint:])
}

// write stores an entry between two steps of its sequence. All stores are
// atomic, and so in this order for all processors.
func (t *Table) write(place uint32, f *Fingerprint, e Entry) {
	le, p := binary.LittleEndian, t.entry(place)
	seq := (*uint32)(unsafe.Pointer(&p[0]))
	n := atomic.LoadUint32(seq) | 1
	atomic.StoreUint32(seq, n)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&p[entryKind])), uint32(e.Kind)|uint32(e.Tier)<<16)
	if f != nil {
		put(p[entryPrint:], le.Uint64(f[:8]))
		put(p[entryPrint+8:], le.Uint64(f[8:]))
	}
	put(p[entryExpires:], uint64(e.Expires))
	put(p[entrySize:], uint64(e.Size)|uint64(e.CRC)<<32)
	put(p[entryOffset:], e.Offset)
	put(p[entryRecord:], e.Record)
	put(p[entryUID:], e.UID)
	atomic.StoreUint32(seq, n+1)
}

func put(p []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&p[0])), v) }

func (t *Table) word(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&t.mem[offset])) }

func (t *Table) tag(place uint32) *uint64 {
	return (*uint64)(unsafe.Pointer(&t.mem[headerBytes+int(place)*8]))
}

func (t *Table) entry(place uint32) []byte {
	at := headerBytes + (int(t.mask)+1)*lane + int(place)*lane
	return t.mem[at : at+lane : at+lane]
}

// Invalidate makes clients ask for another table, and gives this one up.
func (t *Table) Invalidate() { t.giveUp(stateSuperseded) }

// Close marks the table, for clients, as gone for good.
func (t *Table) Close() { t.giveUp(stateClosed) }

// giveUp ends the table. Its memory stays until the keeper's thread has: the
// kernel is about to write to it.
func (t *Table) giveUp(state uint32) {
	atomic.StoreUint32(t.word(offState), state)
	t.keeper.end()
	go func() {
		if died(t.word(offOwner)) {
			t.release()
		}
	}()
}

func (t *Table) release() {
	_ = unix.Munmap(t.mem)
	_ = unix.Close(t.fd)
}
