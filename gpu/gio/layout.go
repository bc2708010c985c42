package gio

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Bounds of a region. They are part of the layout.
const (
	MaxDepth   = 64
	MaxIOCTX   = 2048
	MaxBuffers = 16
	Events     = 32

	// BufferBytes is the length of each buffer but the last: the most that the
	// kernel registers as one.
	BufferBytes = 1 << 30

	pageBytes = 4096
	noEvent   = ^uint32(0)

	magic   = 0x31304f4947534143 // "CASGIO01"
	version = 1

	engineServing = 1
	engineEnded   = 2

	deviceRunning = 1
	deviceEnded   = 2
)

// word has one writer, and a cache line to itself.
type word struct {
	atomic.Uint32
	_ [60]byte
}

// buffer is a piece of the data memory where the engine has it.
type buffer struct{ address, bytes uint64 }

// header is struct gio_header.
type header struct {
	magic                                                                            uint64
	version, depth, numIOCTX, slotBytes, sqesOffset, iocbOffset, buffers, filesCount uint32
	bytes                                                                            uint64
	_                                                                                [16]byte
	sqTail, cqTail, engine, stop, device                                             word
	_                                                                                [128]byte
	buffer                                                                           [MaxBuffers]buffer
	sq, cq                                                                           [MaxDepth]uint32
	event                                                                            [Events]word
	_                                                                                [768]byte
}

// rings is struct gio_rings, the kernel's io_rings.
type rings struct {
	sqHead, sqTail, cqHead, cqTail       atomic.Uint32
	sqMask, cqMask, sqEntries, cqEntries uint32
	sqDropped                            uint32
	sqFlags, cqFlags                     atomic.Uint32
	cqOverflow                           uint32
	_                                    [16]byte
}

// completion is struct gio_cqe.
type completion struct {
	user  uint64
	res   int32
	flags uint32
}

// submission is struct gio_sqe.
type submission struct {
	opcode, flags       uint8
	ioprio              uint16
	file                int32
	offset, addr        uint64
	len, rwFlags        uint32
	user                uint64
	buffer, personality uint16
	splice              int32
	_                   [2]uint64
}

const (
	opReadFixed  = 4
	opWriteFixed = 5

	flagFixedFile = 1
)

// IOCTX is one I/O: where in memory, and what of which file.
type IOCTX struct {
	Address uint64 // in the buffer
	Length  uint32 // of the memory
	ID      uint32 // of the buffer
	Offset  uint64 // in the file
	Bytes   uint32 // to read or write, at most Length
	File    uint32 // index into Options.Files
}

// iocb is struct gio_iocb.
type iocb struct {
	index, num, op, window uint32
	eventWord, eventValue  uint32
	base                   uint32
	_                      uint32
	ended, failed          uint32
	firstResult            int32
	firstFailed            uint32
	_                      [16]byte
	failures               [MaxIOCTX / 32]uint32
}

// Facts are what the number of I/Os per IOCB and per SM follows from.
type Facts struct {
	UnitSMs        int // the least that can be set apart for I/O
	WarpsPerSM     int
	ThreadsPerWarp int
}

// H100 is the paper's device: 2 SMs × 64 warps × 32 threads, half of them for the
// sake of registers.
var H100 = Facts{UnitSMs: 2, WarpsPerSM: 64, ThreadsPerWarp: 32}

// perSM is how many I/Os one SM keeps under way: a thread for each, and half of
// the threads.
func (f Facts) perSM() int { return f.WarpsPerSM * f.ThreadsPerWarp / 2 }

// NumIOCTX is the most IOCTXs of an IOCB on the device: a power of two, as the
// kernel's rings are, and at most MaxIOCTX.
func (f Facts) NumIOCTX() int {
	n := f.UnitSMs * f.perSM()
	if n <= 0 {
		return 0
	}
	return min(1<<(bits.Len(uint(n))-1), MaxIOCTX)
}

// geometry is where things lie in a region.
type geometry struct {
	depth, numIOCTX                   uint32
	sqesOffset, iocbOffset, slotBytes uint32
}

func newGeometry(depth, numIOCTX int) geometry {
	g := geometry{depth: uint32(depth), numIOCTX: uint32(numIOCTX)}
	g.sqesOffset = pages(uint32(unsafe.Sizeof(rings{})) + 2*g.numIOCTX*uint32(unsafe.Sizeof(completion{})))
	g.iocbOffset = g.sqesOffset + pages(g.numIOCTX*uint32(unsafe.Sizeof(submission{})))
	g.slotBytes = g.iocbOffset + pages(uint32(unsafe.Sizeof(iocb{}))+g.numIOCTX*uint32(unsafe.Sizeof(IOCTX{})))
	return g
}

func pages(n uint32) uint32 { return (n + pageBytes - 1) &^ (pageBytes - 1) }

// bytes is the length of the region.
func (g geometry) bytes() int { return pageBytes + int(g.depth)*int(g.slotBytes) }

// region is a mapped region. What its header said is a copy: what lies in the
// region itself anybody may have changed.
type region struct {
	geometry
	buffers []buffer
	files   uint32
	mem     []byte
	h       *header
	slots   []slot
}

// slot is the part of one IOCB.
type slot struct {
	rings *rings
	cqes  []completion
	sqes  []submission
	iocb  *iocb
	ctx   []IOCTX
}

// newRegion lays g over memory of its length.
func newRegion(g geometry, mem []byte) *region {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	r := &region{geometry: g, mem: mem, h: (*header)(base), slots: make([]slot, g.depth)}
	for i := range r.slots {
		at := unsafe.Add(base, pageBytes+i*int(g.slotBytes))
		r.slots[i] = slot{
			rings: (*rings)(at),
			cqes:  unsafe.Slice((*completion)(unsafe.Add(at, unsafe.Sizeof(rings{}))), 2*g.numIOCTX),
			sqes:  unsafe.Slice((*submission)(unsafe.Add(at, g.sqesOffset)), g.numIOCTX),
			iocb:  (*iocb)(unsafe.Add(at, g.iocbOffset)),
			ctx:   unsafe.Slice((*IOCTX)(unsafe.Add(at, uintptr(g.iocbOffset)+unsafe.Sizeof(iocb{}))), g.numIOCTX),
		}
	}
	return r
}

// describe writes the header of a new region.
func (r *region) describe(buffers []buffer, files int) {
	h := r.h
	h.magic, h.version, h.depth, h.numIOCTX = magic, version, r.depth, r.numIOCTX
	h.slotBytes, h.sqesOffset, h.iocbOffset = r.slotBytes, r.sqesOffset, r.iocbOffset
	h.buffers, h.filesCount, h.bytes = uint32(len(buffers)), uint32(files), uint64(len(r.mem))
	copy(h.buffer[:], buffers)
	r.buffers, r.files = buffers, uint32(files)
	for i := range r.slots {
		r.slots[i].iocb.index = uint32(i)
		r.slots[i].iocb.eventWord = noEvent
	}
}

// geometryOf reads the header of a region of n bytes; false when it has none that
// this build knows.
func geometryOf(h *header, n int) (geometry, bool) {
	depth, num := h.depth, h.numIOCTX
	if h.magic != magic || h.version != version || depth == 0 || depth > MaxDepth || num == 0 || num > MaxIOCTX || num&(num-1) != 0 {
		return geometry{}, false
	}
	g := newGeometry(int(depth), int(num))
	same := h.slotBytes == g.slotBytes && h.sqesOffset == g.sqesOffset && h.iocbOffset == g.iocbOffset
	return g, same && g.bytes() == n && h.bytes == uint64(n)
}

// learn copies what the header of a mapped region says of data memory and files;
// false when it has more buffers than there can be.
func (r *region) learn() bool {
	n := r.h.buffers
	if n > MaxBuffers {
		return false
	}
	r.buffers, r.files = slices.Clone(r.h.buffer[:n]), r.h.filesCount
	return true
}
