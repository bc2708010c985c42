package shmindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoTable means that a file is no table, or one of a version or with features that are not known.
var ErrNoTable = errors.New("shmindex: no table that can be read")

// Reader looks names up in a table, as clients do. Its methods may be called
// from any goroutine.
type Reader struct {
	mem  []byte
	mask uint32
}

// OpenReader maps the table behind fd, which stays the caller's.
// Errors: ErrNoTable.
func OpenReader(fd int) (*Reader, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shmindex: %w", os.NewSyscallError("mmap", err))
	}
	r, err := newReader(mem)
	if err != nil {
		_ = unix.Munmap(mem)
	}
	return r, err
}

// newReader reads a table in memory. Whatever is there, reads stay in it.
func newReader(mem []byte) (*Reader, error) {
	le := binary.LittleEndian
	if len(mem) < headerBytes || string(mem[:8]) != tableMagic {
		return nil, ErrNoTable
	}
	if v := le.Uint32(mem[offVersion:]); v < 1 || v > tableVersion {
		return nil, fmt.Errorf("%w: version %d", ErrNoTable, v)
	}
	if f := le.Uint32(mem[offFeature:]); f != 0 {
		return nil, fmt.Errorf("%w: features %#x", ErrNoTable, f)
	}
	buckets := le.Uint32(mem[offBuckets:])
	if bits.OnesCount32(buckets) != 1 || int64(len(mem)) != headerBytes+int64(buckets)*lane*(1+bucketSlots) {
		return nil, fmt.Errorf("%w: %d buckets in %d bytes", ErrNoTable, buckets, len(mem))
	}
	return &Reader{mem, buckets - 1}, nil
}

// Alive reports whether the table is kept and in use.
func (r *Reader) Alive() bool {
	owner := r.load32(offOwner)
	return r.load32(offState) == stateUsed && owner != 0 && owner&ownerDied == 0
}

// Final reports whether a name that is not in the table is nowhere.
func (r *Reader) Final() bool { return r.load32(offFinal) == 1 }

// Lookup returns the entry of f and its place; false when there is none, or when
// no whole entry is seen for about 0.1 s.
func (r *Reader) Lookup(f Fingerprint) (e Entry, place uint32, ok bool) {
	a, b := f.buckets(r.mask)
	for _, bucket := range []uint32{a, b} {
		for i := range uint32(bucketSlots) {
			place = bucket*bucketSlots + i
			if r.load64(headerBytes+int(place)*8) != f.tag() {
				continue
			}
			if e, ok = r.read(place, f); ok {
				return e, place, true
			}
		}
	}
	return Entry{}, 0, false
}

// readTries bounds how often an entry is read while it is being written. The
// writer may have lost its core in the middle, so all but the first tries wait
// for readWait.
const (
	readTries = 2000
	readSpins = 64
	readWait  = 50 * time.Microsecond
)

func (r *Reader) read(place uint32, f Fingerprint) (e Entry, ok bool) {
	at := headerBytes + (int(r.mask)+1)*lane + int(place)*lane
	for try := range readTries {
		if try > readSpins {
			time.Sleep(readWait)
		}
		seq := r.load32(at)
		kind := r.load32(at + entryKind)
		lo, hi := r.load64(at+entryPrint), r.load64(at+entryPrint+8)
		size := r.load64(at + entrySize)
		e = Entry{
			Kind: Kind(kind), Tier: uint16(kind >> 16), Expires: int64(r.load64(at + entryExpires)),
			Size: uint32(size), CRC: uint32(size >> 32),
			Offset: r.load64(at + entryOffset), Record: r.load64(at + entryRecord), UID: r.load64(at + entryUID),
		}
		if seq&1 == 0 && r.load32(at) == seq {
			le := binary.LittleEndian
			return e, e.Kind != 0 && lo == le.Uint64(f[:8]) && hi == le.Uint64(f[8:])
		}
	}
	return e, false
}

// says reports whether e is what a place has of f.
func (r *Reader) says(place uint32, f Fingerprint, e Entry) bool {
	now, ok := r.read(place, f)
	return ok && now == e
}

// Close unmaps the table.
func (r *Reader) Close() { _ = unix.Munmap(r.mem) }

func (r *Reader) load32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.mem[at])))
}
func (r *Reader) load64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.mem[at])))
}
