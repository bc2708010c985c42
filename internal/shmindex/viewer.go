package shmindex

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Of the arena file, docs/format.md §2.
const (
	arenaData     = 32
	arenaMoving   = 56
	recordMagic   = 0x314b4243 // "CBK1"
	recordUID     = 8
	recordOffset  = 48
	recordSize    = 56
	recordCRC     = 64
	recordVersion = 68
)

// Viewer reads blocks in place, as clients do. Its methods may be called from any
// goroutine. It does not checksum what it shows.
type Viewer struct {
	Index *Reader
	Holds *Holds // the client's own mapping
	Arena []byte // the arena file, for reading

	Between func() // for tests: called when a block was found, before it is held; nil: nothing
}

// View is a block that is held.
type View struct {
	Entry
	Bytes []byte // dead after LetGo
	slot  int
}

// View holds a block where it is; false when the rank must be asked.
func (v *Viewer) View(f Fingerprint) (view View, ok bool) {
	e, place, ok := v.Index.Lookup(f)
	if !ok || e.Kind != InArena {
		return View{}, false
	}
	was, ok := v.recorded(e)
	if !ok {
		return View{}, false
	}
	if v.Between != nil {
		v.Between()
	}
	slot, ok := v.Holds.Take(int64(e.Offset), int64(e.Size))
	if !ok {
		return View{}, false
	}
	// The slot is stored: from here on the block stays, unless it went before.
	moving := atomic.LoadUint32((*uint32)(unsafe.Pointer(&v.Arena[arenaMoving])))
	if v.Holds.ended() || moving != 0 || !v.unmoved(e, was) || !v.Index.says(place, f, e) || !v.Index.Alive() {
		v.Holds.LetGo(slot, int64(e.Size))
		return View{}, false
	}
	return View{e, v.Arena[e.Offset : e.Offset+uint64(e.Size)], slot}, true
}

// LetGo ends a view.
func (v *Viewer) LetGo(view View) { v.Holds.LetGo(view.slot, int64(view.Size)) }

// recorded reports whether the block is where the entry says, as its record there
// does, and the version of that record.
func (v *Viewer) recorded(e Entry) (version uint32, ok bool) {
	p, le := v.Arena[e.Record:], binary.LittleEndian
	magic := func() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p[0]))) == recordMagic }
	if !magic() {
		return 0, false
	}
	ok = le.Uint64(p[recordUID:]) == e.UID && le.Uint64(p[recordSize:]) == uint64(e.Size) && le.Uint32(p[recordCRC:]) == e.CRC &&
		le.Uint64(v.Arena[arenaData:])+le.Uint64(p[recordOffset:]) == e.Offset
	return le.Uint32(p[recordVersion:]), ok && magic()
}

// unmoved reports whether the block was there ever since its record had a version.
func (v *Viewer) unmoved(e Entry, was uint32) bool {
	version, ok := v.recorded(e)
	return ok && version == was
}
