package shmindex

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func newHolds(t *testing.T, allowance int64) *Holds {
	t.Helper()
	h, err := NewHolds(allowance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// TestGoldenHolds holds docs/format.md §6.4 to the letter.
func TestGoldenHolds(t *testing.T) {
	h := newHolds(t, 5<<20)
	a, _ := h.Take(0x3000, 100)
	b, _ := h.Take(0x5000, 42)
	h.LetGo(a, 100)
	h.End()
	le, want := binary.LittleEndian, make([]byte, 128+8*256)
	copy(want, "CASCHLD1\x01\x00\x00\x00\x00\x01\x00\x00")
	le.PutUint64(want[16:], 5<<20)
	want[24] = 1
	le.PutUint64(want[64:], 1)
	le.PutUint64(want[72:], 42)
	le.PutUint64(want[128+8*b:], 0x5000)
	if !bytes.Equal(h.mem, want) {
		t.Errorf("holds are\n%x\nwant\n%x", h.mem[:160], want[:160])
	}
}

func TestHolds(t *testing.T) {
	h := newHolds(t, 1<<20)
	var slots []int
	for i := range holdsSlots {
		slot, ok := h.Take(int64(4096*(i+1)), 10)
		if !ok {
			t.Fatalf("no slot after %d", i)
		}
		slots = append(slots, slot)
	}
	if _, ok := h.Take(1<<30, 10); ok || h.Has(1<<30) {
		t.Error("more is held than there are slots")
	}
	if n, size := h.Held(); n != holdsSlots || size != 10*holdsSlots {
		t.Errorf("%d blocks, %d bytes held", n, size)
	}
	for i, slot := range slots {
		at := int64(4096 * (i + 1))
		if !h.Has(at) || h.Has(at+64) {
			t.Fatalf("held at %d: %v, behind: %v", at, h.Has(at), h.Has(at+64))
		}
		h.LetGo(slot, 10)
		if h.Has(at) {
			t.Fatalf("still held at %d", at)
		}
	}
	if n, size := h.Held(); n != 0 || size != 0 || h.Has(0) {
		t.Errorf("%d blocks, %d bytes held at the end", n, size)
	}
	for i := range h.mem { // whatever a client writes
		h.mem[i] = 0xff
	}
	if n, size := h.Held(); n != holdsSlots || size != 1<<20 {
		t.Errorf("nonsense counts as %d blocks, %d bytes", n, size)
	}
	if !h.Has(-1) || h.Has(0) {
		t.Error("a slot of ones is read wrong")
	}
}

// TestOpenHolds: what another program of this process held goes on; anything else
// is refused, and closed.
func TestOpenHolds(t *testing.T) {
	h := newHolds(t, 1<<20)
	if _, ok := h.Take(8192, 7); !ok {
		t.Fatal("no slot")
	}
	dup := func() int {
		fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for most, want := range map[int64]int64{1 << 30: 1 << 20, 1000: 1000} {
		again, err := OpenHolds(dup(), most)
		if err != nil || again.Allowance() != want || !again.Has(8192) {
			t.Fatalf("%+v, %v", again, err)
		}
		again.Close()
	}

	ring, err := NewRing()
	if err != nil {
		t.Fatal(err)
	}
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(loose, holdsBytes); err != nil {
		t.Fatal(err)
	}
	damaged := newHolds(t, 1)
	damaged.mem[8] = 9
	for name, fd := range map[string]int{"a ring": ring.fd, "a file that may shrink": loose, "another version": damaged.fd} {
		if h, err := OpenHolds(fd, 1); !errors.Is(err, ErrNoHolds) {
			t.Errorf("%s: %v, %v", name, h, err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s is left open", name)
		}
	}
}

// TestViewOfABlockThatMoved: the record that an entry names may be the same
// block's again, in the same cell, when it has been moved twice: elsewhere, or
// back to where others were meanwhile.
func TestViewOfABlockThatMoved(t *testing.T) {
	const data, record, at = 4096, 8192, 12288
	arena, le := make([]byte, 16384), binary.LittleEndian
	print := FingerprintOf("ns", "k")
	e := Entry{Kind: InArena, Size: 100, CRC: 0x01020304, Offset: at, Record: record, UID: 7}
	table, reader := newTable(t, Options{Names: 10, Number: 1, Arena: int64(len(arena))})
	place, err := table.Insert(print, e)
	if err != nil {
		t.Fatal(err)
	}
	le.PutUint64(arena[32:], data)
	write := func(uid, offset, size uint64, crc, version uint32) {
		p := arena[record:]
		le.PutUint32(p, recordMagic)
		le.PutUint64(p[8:], uid)
		le.PutUint64(p[48:], offset-data)
		le.PutUint64(p[56:], size)
		le.PutUint32(p[64:], crc)
		le.PutUint32(p[68:], version)
	}
	v := Viewer{Index: reader, Holds: newHolds(t, 1<<20), Arena: arena}
	for name, c := range map[string]struct {
		meanwhile func()
		held      bool
	}{
		"nothing happens":       {func() {}, true},
		"its record is gone":    {func() { le.PutUint32(arena[record:], 0) }, false},
		"another block's":       {func() { write(8, at, 100, e.CRC, 3) }, false},
		"moved elsewhere":       {func() { write(7, at-1024, 100, e.CRC, 5) }, false},
		"moved away and back":   {func() { write(7, at, 100, e.CRC, 5) }, false},
		"of another size":       {func() { write(7, at, 99, e.CRC, 3) }, false},
		"of another checksum":   {func() { write(7, at, 100, e.CRC+1, 3) }, false},
		"blocks are moved":      {func() { arena[arenaMoving] = 1 }, false},
		"the name has another":  {func() { o := e; o.UID = 8; table.Update(place, o) }, false},
		"nobody looks any more": {func() { v.Holds.End() }, false},
	} {
		v.Holds = newHolds(t, 1<<20)
		arena[arenaMoving] = 0
		write(7, at, 100, e.CRC, 3)
		table.Update(place, e)
		v.Between = c.meanwhile
		view, ok := v.View(print)
		if ok != c.held {
			t.Errorf("%s: held: %v", name, ok)
		}
		if n, _ := v.Holds.Held(); (n == 1) != c.held {
			t.Errorf("%s: %d slots are taken", name, n)
		}
		if ok {
			v.LetGo(view)
		}
	}
}
