package gio

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is what starts IOCBs and follows them: gio_device of gio.h in Go, for
// where a CPU stands in for a GPU. It uses memory alone. One goroutine uses it,
// and a region has one.
type Device struct {
	r       *region
	mapped  bool
	cancels *cancels // of the queue in the same process; nil: nobody cancels
	sqSeen  uint32
	cqTail  uint32
	active  int
	started [MaxDepth]deviceSlot
}

// cancels are, by IOCB, what became of one that waits for its event: 0, nothing; cancelAsked by the host; cancelDone by the
// device, which has not begun it then. They lie in no region.
type cancels [MaxDepth]atomic.Uint32

const (
	cancelAsked = 1
	cancelDone  = 2
)

type deviceSlot struct {
	state  deviceState
	num    uint32
	base   uint32
	window uint32
	cqHead uint32

	published, taken uint32
}

type deviceState uint8

const (
	idle    deviceState = iota
	waiting             // for its event
	started
)

// OpenDevice maps the region of a client that runs its device in a process of
// its own. The caller closes the file, and the Device. Error: ErrLayout.
func OpenDevice(f *os.File) (*Device, error) {
	r, err := mapRegion(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return &Device{r: r, mapped: true}, nil
}

// Close unmaps the region.
func (d *Device) Close() error {
	if !d.mapped {
		return nil
	}
	d.mapped = false
	return os.NewSyscallError("munmap", unix.Munmap(d.r.mem))
}

// Spin serves until the host stops it, without a system call and without giving
// the processor away: the runtime cannot preempt it unless it does so by signals.
//
//go:nosplit
func (d *Device) Spin() {
	d.r.h.device.Store(deviceRunning)
	for d.r.h.stop.Load() == 0 {
		d.step()
	}
	d.r.h.device.Store(deviceEnded)
}

// run serves until the host stops it or stop is closed, and sleeps ever longer
// while nothing happens.
func (d *Device) run(stop <-chan struct{}) {
	d.r.h.device.Store(deviceRunning)
	defer d.r.h.device.Store(deviceEnded)
	pause := pacer{least: 20 * time.Microsecond, most: 500 * time.Microsecond}
	for d.r.h.stop.Load() == 0 {
		select {
		case <-stop: // also where a client makes something happen for ever
			return
		default:
		}
		if d.step() {
			pause.reset()
			continue
		}
		if !pause.sleep(stop) {
			return
		}
	}
}

// step does what can be done now, and reports whether that was anything.
//
//go:nosplit
func (d *Device) step() bool {
	h := d.r.h
	tail := h.sqTail.Load()
	happened := tail != d.sqSeen
	if tail-d.sqSeen > MaxDepth { // no host of ours wrote that
		d.sqSeen = tail - MaxDepth
	}
	for ; d.sqSeen != tail; d.sqSeen++ {
		i := h.sq[d.sqSeen%MaxDepth]
		if i >= d.r.depth || d.started[i].state != idle {
			continue
		}
		b, s := d.r.slots[i].iocb, &d.started[i]
		s.state, s.num, s.base, s.published, s.taken = waiting, b.num, b.base, 0, 0
		if s.num > d.r.numIOCTX {
			s.num = 0
		}
		if s.window = b.window; s.window == 0 || s.window > s.num {
			s.window = s.num
		}
		d.active++
	}
	for i := uint32(0); d.active > 0 && i < d.r.depth; i++ {
		if d.advance(i) {
			happened = true
		}
	}
	return happened
}

// advance does what can be done now for one IOCB.
//
//go:nosplit
func (d *Device) advance(i uint32) (happened bool) {
	s, b := &d.started[i], d.r.slots[i].iocb
	if s.state == waiting {
		if d.cancels != nil && d.cancels[i].CompareAndSwap(cancelAsked, cancelDone) {
			s.num, s.window = 0, 0
		} else if w := b.eventWord; w < Events && int32(d.r.h.event[w].Load()-b.eventValue) < 0 {
			return false
		}
		s.state = started
	}
	if s.state != started {
		return false
	}
	limit := s.taken + s.window
	if limit > s.num {
		limit = s.num
	}
	if s.published < limit {
		s.published = limit
		d.r.slots[i].rings.sqTail.Store(s.base + s.published)
		happened = true
	}
	if d.take(i) {
		happened = true
	}
	if s.taken == s.num {
		s.state = idle
		d.active--
		b.ended++
		d.r.h.cq[d.cqTail%MaxDepth] = i
		d.cqTail++
		d.r.h.cqTail.Store(d.cqTail)
		happened = true
	}
	return happened
}

// take consumes the completions of an IOCB.
//
//go:nosplit
func (d *Device) take(i uint32) bool {
	s, l := &d.started[i], &d.r.slots[i]
	tail := l.rings.cqTail.Load()
	if tail == s.cqHead {
		return false
	}
	mask := d.r.numIOCTX - 1
	for ; s.cqHead != tail && s.taken < s.num; s.cqHead++ {
		e := &l.cqes[s.cqHead&(2*mask+1)]
		k := uint32(e.user) & mask
		s.taken++
		if e.res == int32(l.sqes[(s.base+k)&mask].len) {
			continue
		}
		b := l.iocb
		if b.failed == 0 {
			b.firstResult, b.firstFailed = e.res, k
		}
		b.failed++
		b.failures[k/32%(MaxIOCTX/32)] |= 1 << (k % 32)
	}
	l.rings.cqHead.Store(s.cqHead)
	return true
}

// mapRegion maps the region of a memfd.
func mapRegion(fd int) (*region, error) {
	mem, err := mapSealed(fd)
	if err != nil {
		return nil, err
	}
	if g, ok := geometryOf((*header)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)); ok {
		if r := newRegion(g, mem); r.learn() {
			return r, nil
		}
	}
	_ = unix.Munmap(mem) // ours, so it succeeds
	return nil, fmt.Errorf("%w: a memfd of %d bytes", ErrLayout, len(mem))
}

// mapSealed maps a memfd that nobody can cut off.
func mapSealed(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("gio: %w", os.NewSyscallError("fstat", err))
	}
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size < pageBytes {
		return nil, fmt.Errorf("%w: not a memfd that keeps its length", ErrLayout)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("gio: %w", os.NewSyscallError("mmap", err))
	}
	return mem, nil
}

// pacer sleeps for twice as long each time.
type pacer struct{ least, most, next time.Duration }

func (p *pacer) reset() { p.next = 0 }

// sleep reports whether stop is still open.
func (p *pacer) sleep(stop <-chan struct{}) bool {
	p.next = min(max(p.least, 2*p.next), p.most)
	select {
	case <-stop:
		return false
	default:
	}
	time.Sleep(p.next)
	return true
}
