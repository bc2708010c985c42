package shmindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoHolds means that a file is no table of holds of this version.
var ErrNoHolds = errors.New("shmindex: no holds of this version")

// Holds is which blocks of the arena one client reads in place, as the client
// says. Its methods may be called from any goroutine until Close. The client may
// write anything into it at any time.
type Holds struct {
	fd        int
	mem       []byte
	allowance int64
}

// NewHolds makes holds of nothing. allowance is how many bytes of blocks the
// client may hold at a time.
func NewHolds(allowance int64) (*Holds, error) {
	fd, mem, err := slotted("cascade-holds", holdsMagic, holdsSlots, holdsBytes)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(mem[holdsAllowance:], uint64(allowance))
	return &Holds{fd, mem, allowance}, nil
}

// OpenHolds maps the holds behind fd, which an earlier program of this process
// made, and which is theirs from now on, or closed on error. What they allow is
// at most most: the client may have written it. Errors: ErrNoHolds.
func OpenHolds(fd int, most int64) (*Holds, error) {
	h, err := openHolds(fd, most)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return h, nil
}

func openHolds(fd int, most int64) (*Holds, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHolds, os.NewSyscallError("fstat", err))
	}
	// Without the seals, whoever shortens the file ends this process.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size != holdsBytes {
		return nil, fmt.Errorf("%w: %d bytes, seals %#x", ErrNoHolds, st.Size, seals)
	}
	mem, err := unix.Mmap(fd, 0, holdsBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shmindex: %w", os.NewSyscallError("mmap", err))
	}
	le := binary.LittleEndian
	if string(mem[:8]) != holdsMagic || le.Uint32(mem[offVersion:]) != holdsVersion || le.Uint32(mem[offBuckets:]) != holdsSlots {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("%w: another magic or version", ErrNoHolds)
	}
	return &Holds{fd, mem, int64(min(le.Uint64(mem[holdsAllowance:]), uint64(most)))}, nil
}

// File is the descriptor, for handing to the client; it stays the holds'.
func (h *Holds) File() (fd int, size int64) { return h.fd, holdsBytes }

// Allowance is how many bytes of blocks the client may hold.
func (h *Holds) Allowance() int64 { return h.allowance }

// Has reports whether the block at an offset of the arena file is held. A client
// that comes later sees what the caller stored before it asked, and lets go: all
// of this is atomic, and so in one order for both.
func (h *Holds) Has(offset int64) bool {
	if atomic.LoadUint64(h.word(holdsTaken)) == 0 {
		return false
	}
	for i := range holdsSlots {
		if atomic.LoadUint64(h.word(holdsSlot+8*i)) == uint64(offset) {
			return true
		}
	}
	return false
}

// Held returns how many blocks are held and their bytes, for statistics.
func (h *Holds) Held() (blocks, bytes int64) {
	blocks = int64(min(atomic.LoadUint64(h.word(holdsTaken)), holdsSlots))
	bytes = int64(min(atomic.LoadUint64(h.word(holdsHeld)), uint64(h.allowance)))
	return blocks, bytes
}

// End marks the table of holds as read by nobody any more.
func (h *Holds) End() { atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.mem[holdsEnded])), 1) }

func (h *Holds) ended() bool {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&h.mem[holdsEnded]))) != 0
}

// Close unmaps the holds.
func (h *Holds) Close() {
	_ = unix.Munmap(h.mem)
	_ = unix.Close(h.fd)
}

func (h *Holds) word(at int) *uint64 { return (*uint64)(unsafe.Pointer(&h.mem[at])) }

// Take holds the block at an offset of the arena file, as a client does, and
// returns its slot; false when none is left. The caller then looks whether the
// block is still there.
func (h *Holds) Take(offset, size int64) (slot int, ok bool) {
	atomic.AddUint64(h.word(holdsTaken), 1)
	for i := range holdsSlots {
		if atomic.CompareAndSwapUint64(h.word(holdsSlot+8*i), 0, uint64(offset)) {
			atomic.AddUint64(h.word(holdsHeld), uint64(size))
			return i, true
		}
	}
	atomic.AddUint64(h.word(holdsTaken), ^uint64(0))
	return 0, false
}

// LetGo ends what Take began, after the last look at the block's bytes.
func (h *Holds) LetGo(slot int, size int64) {
	atomic.StoreUint64(h.word(holdsSlot+8*slot), 0)
	atomic.AddUint64(h.word(holdsHeld), ^uint64(size-1))
	atomic.AddUint64(h.word(holdsTaken), ^uint64(0))
}
