package gio

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"
	"unsafe"
)

// ptxMemory is memory as a GPU's memory model allows it to look: a store that is
// no release becomes visible at some later time, in any order; a load that is no
// acquire finds what memory holds, or what it held when the lane last knew more.
// The host's memory is the region itself, whose engine and host run meanwhile.
//
// It is weaker than a GPU in some and stronger in other respects: stores reach
// all other warps at once, and no load finds what is stored after it.
type ptxMemory struct {
	now     int64
	parts   []ptxPart
	release map[uint64]ptxView // what a word of device memory hands over to an acquire
}

type ptxPart struct {
	at     uint64
	mem    []byte
	shared bool // with the host and the engine, which release all that they store
}

type ptxSnapshot struct {
	time int64
	mem  [][]byte
}

// ptxByte is a byte that a lane knows, and since when.
type ptxByte struct {
	value byte
	time  int64
}

// ptxView is the oldest that a lane can find.
type ptxView struct {
	base *ptxSnapshot
	seen map[uint64]ptxByte // bytes that are newer
}

type ptxStore struct {
	at   uint64
	data []byte
}

func (s ptxStore) overlaps(o ptxStore) bool {
	return s.at < o.at+uint64(len(o.data)) && o.at < s.at+uint64(len(s.data))
}

// word is where an aligned word lies.
func (m *ptxMemory) word(at uint64, size int) (part int, off uint64) {
	for i, p := range m.parts {
		if off := at - p.at; at >= p.at && off < uint64(len(p.mem)) && off+uint64(size) <= uint64(len(p.mem)) && at%uint64(size) == 0 {
			return i, off
		}
	}
	fail("an access of %d bytes at %#x", size, at)
	return 0, 0
}

func (m *ptxMemory) snapshot() *ptxSnapshot {
	m.now++
	s := &ptxSnapshot{time: m.now}
	for _, p := range m.parts {
		s.mem = append(s.mem, slices.Clone(p.mem))
	}
	return s
}

func (m *ptxMemory) read(at uint64, size int) (b [8]byte) {
	i, off := m.word(at, size)
	switch p := unsafe.Pointer(&m.parts[i].mem[off]); size {
	case 4:
		binary.LittleEndian.PutUint32(b[:], atomic.LoadUint32((*uint32)(p)))
	case 8:
		binary.LittleEndian.PutUint64(b[:], atomic.LoadUint64((*uint64)(p)))
	default:
		copy(b[:size], m.parts[i].mem[off:])
	}
	return b
}

func (m *ptxMemory) write(s ptxStore) {
	i, off := m.word(s.at, len(s.data))
	switch p := unsafe.Pointer(&m.parts[i].mem[off]); len(s.data) {
	case 4:
		atomic.StoreUint32((*uint32)(p), binary.LittleEndian.Uint32(s.data))
	case 8:
		atomic.StoreUint64((*uint64)(p), binary.LittleEndian.Uint64(s.data))
	default:
		copy(m.parts[i].mem[off:], s.data)
	}
	delete(m.release, s.at)
}

// learn takes over what another view has that is newer.
func (v *ptxView) learn(o ptxView) {
	if o.base.time > v.base.time {
		v.base = o.base
	}
	for at, b := range o.seen {
		if b.time > v.seen[at].time {
			v.seen[at] = b
		}
	}
	maps.DeleteFunc(v.seen, func(_ uint64, b ptxByte) bool { return b.time < v.base.time })
}

// load is a load without order.
func (l *ptxLane) load(at uint64, size int) uint64 {
	m := l.warp.m
	part, off := m.word(at, size)
	b := m.read(at, size)
	fresh := m.rng.IntN(2) == 0
	m.now++
	for i := range size {
		a := at + uint64(i)
		if fresh {
			l.seen[a] = ptxByte{b[i], m.now}
		} else if s, ok := l.seen[a]; ok {
			b[i] = s.value
		} else {
			b[i] = l.base.mem[part][off+uint64(i)]
		}
	}
	l.forward(at, size, &b)
	return binary.LittleEndian.Uint64(b[:])
}

// forward lays over b what the lane itself, and its warp, have stored.
func (l *ptxLane) forward(at uint64, size int, b *[8]byte) {
	for _, buf := range [][]ptxStore{l.warp.buf, l.buf} {
		for _, s := range buf {
			for i := range s.data {
				if off := s.at + uint64(i) - at; off < uint64(size) {
					b[off] = s.data[i]
				}
			}
		}
	}
}

// loadStrong finds what memory holds. The first acquire of a value makes known
// what was released with it.
func (l *ptxLane) loadStrong(at uint64, acquire bool) uint64 {
	m := l.warp.m
	b := m.read(at, 4)
	l.forward(at, 4, &b)
	v := binary.LittleEndian.Uint64(b[:])
	if part, _ := m.word(at, 4); acquire && l.last[at] != v {
		l.last[at] = v
		if m.parts[part].shared {
			l.learn(ptxView{base: m.snapshot()})
		} else if r, ok := m.release[at]; ok {
			l.learn(r)
		}
	}
	return v
}

// store is a store without order.
func (l *ptxLane) store(at uint64, size int, v uint64) {
	l.warp.m.word(at, size)
	l.buf = append(l.buf, ptxStore{at, binary.LittleEndian.AppendUint64(nil, v)[:size:size]})
}

func (l *ptxLane) storeRelease(at uint64, v uint64) {
	l.store(at, 4, v)
	l.flush()
	l.warp.m.release[at] = ptxView{l.base, maps.Clone(l.seen)}
}

// flush makes all stores visible that the lane made, or that it knows of by a
// barrier of its warp.
func (l *ptxLane) flush() {
	for len(l.warp.buf)+len(l.buf) > 0 {
		l.put(0)
	}
}

// put makes the n-th store of the warp's and the lane's visible. All lanes of the warp know those that a barrier
// handed to it, and find nothing older from then on, whichever lane it is that makes one visible.
func (l *ptxLane) put(n int) {
	m, know, buf := l.warp.m, l.warp.lanes[:], &l.warp.buf
	if k := n - len(l.warp.buf); k >= 0 {
		n, know, buf = k, l.warp.lanes[l.thread%32:][:1], &l.buf
	}
	s := (*buf)[n]
	*buf = slices.Delete(*buf, n, n+1)
	m.write(s)
	m.now++
	for lane := range know {
		for i, b := range s.data {
			know[lane].seen[s.at+uint64(i)] = ptxByte{b, m.now}
		}
	}
}

// drain makes one store visible: any, but the stores to one address in order.
func (l *ptxLane) drain() {
	all := slices.Concat(l.warp.buf, l.buf)
	if len(all) == 0 {
		return
	}
	n := l.warp.m.rng.IntN(len(all))
	l.put(slices.IndexFunc(all, all[n].overlaps))
}

// order is bar.warp.sync: what each lane stored or knows all of them do.
func (w *ptxWarp) order() {
	all := ptxView{base: w.lanes[0].base, seen: map[uint64]ptxByte{}}
	for i := range w.lanes {
		l := &w.lanes[i]
		all.learn(l.ptxView)
		w.buf = append(w.buf, l.buf...)
		l.buf = nil
	}
	for i := range w.lanes {
		w.lanes[i].learn(all)
	}
}
