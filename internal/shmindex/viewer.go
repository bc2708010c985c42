package shmindex

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Of the arena file, docs/format.md §2.
const (
	arenaMoving = 56
	recordMagic = 0x314b4243 // "CBK1"
	recordUID   = 8
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
	e, _, ok := v.Index.Lookup(f)
	if !ok || e.Kind != InArena || !v.recorded(e) {
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
	if v.Holds.ended() || moving != 0 || !v.recorded(e) || !v.Index.Alive() {
		v.Holds.LetGo(slot, int64(e.Size))
		return View{}, false
	}
	return View{e, v.Arena[e.Offset : e.Offset+uint64(e.Size)], slot}, true
}

// LetGo ends a view.
func (v *Viewer) LetGo(view View) { v.Holds.LetGo(view.slot, int64(view.Size)) }

// recorded tells whether the block's record is there. Its number is never
// another's.
func (v *Viewer) recorded(e Entry) bool {
	p := v.Arena[e.Record:]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p[0]))) == recordMagic && binary.LittleEndian.Uint64(p[recordUID:]) == e.UID
}
