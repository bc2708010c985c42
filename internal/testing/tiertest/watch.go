package tiertest

import (
	"bytes"
	"sync/atomic"
	"testing"

	"cascadekv/tiers"
)

// watched tries that what somebody outside holds stays where it is, whatever
// becomes of the block, and that its room is used again when it is held no longer.
func (c Config) watched(t *testing.T) {
	tr := c.fresh(t, tight)
	m := tr.mem(t)
	if m.File() < 0 {
		t.Skip("the tier has no records that others could check")
	}
	for _, size := range []int64{100, 3000, 42 << 10, 700 << 10} {
		held := map[int64]bool{}
		m.Watch(func(offset int64) bool { return held[offset] })
		stays, gone, other := item(1, size), item(2, size), item(3, size)
		put(t, tr, stays, gone, other)
		at := placeOf(t, m, gone.Info.ID).Offset
		held[at], held[placeOf(t, m, stays.Info.ID).Offset] = true, true
		if err := tr.Evict(gone.Info.ID); err != nil {
			t.Fatal(err)
		}
		wantMiss(t, tr, gone.Info.ID)
		if n := m.Settle(); n != size {
			t.Errorf("%d bytes are held and no block, want %d", n, size)
		}
		for _, claim := range m.HeldRanges() {
			if want := (tiers.HeldRange{Offset: claim.Offset, Size: size, CRC: claim.CRC}); claim != want || !held[claim.Offset] {
				t.Errorf("claim %+v", claim)
			}
			delete(held, claim.Offset)
		}
		if len(held) > 0 {
			t.Errorf("no claim on %v", held)
		}
		held[at] = true
		used := tr.Usage().Used
		fills := fillUp(t, m, size)
		if len(fills) == 0 {
			t.Fatal("there was no room: this tests nothing")
		}
		if b := m.Region()[at:][:size]; !bytes.Equal(b, gone.Data) {
			t.Errorf("%d bytes that are held have changed", size)
		}
		delete(held, at)
		again, err := m.Reserve(size) // looks again when it is full
		if err != nil {
			t.Fatalf("Reserve in room that is held no longer: %v", err)
		}
		for _, s := range append(fills, again) {
			s.Abort()
		}
		if n := m.Settle(); n != 0 || tr.Usage().Used >= used {
			t.Errorf("%d bytes are held, %d used of %d", n, tr.Usage().Used, used)
		}
		for _, it := range []tiers.Item{stays, other} {
			readBack(t, tr, it)
			if err := tr.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.Watch(nil)
}

// fillUp reserves all room there is in pieces of one size, and writes to it.
func fillUp(t *testing.T, m tiers.Memory, size int64) (slots []tiers.Slot) {
	t.Helper()
	for {
		s, err := m.Reserve(size)
		if err != nil {
			wantErr(t, "Reserve", err, tiers.ErrFull)
			return slots
		}
		for i := range s.Bytes() {
			s.Bytes()[i] = 0xee
		}
		slots = append(slots, s)
	}
}

// watchedPins tries a block that is pinned and held: the last of both keeps it.
func (c Config) watchedPins(t *testing.T) {
	tr := c.fresh(t, tight)
	m := tr.mem(t)
	if m.File() < 0 {
		t.Skip("the tier has no records that others could check")
	}
	var held atomic.Bool
	it := item(1, 42<<10)
	put(t, tr, it)
	at := placeOf(t, m, it.Info.ID).Offset
	m.Watch(func(offset int64) bool { return offset == at && held.Load() })
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	held.Store(true)
	p.Bytes()[0] ^= 1 // so that a read withdraws it: Evict would refuse
	wantErr(t, "ReadInto of damaged bytes", p.ReadInto(t.Context(), make([]byte, it.Info.Size)), tiers.ErrCorrupt)
	if n := m.Settle(); n != 0 {
		t.Errorf("%d bytes are nobody's although they are pinned", n)
	}
	p.Release()
	if n := m.Settle(); n != it.Info.Size {
		t.Errorf("%d bytes are held, want %d", n, it.Info.Size)
	}
	held.Store(false)
	if n := m.Settle(); n != 0 || tr.Usage().Payload != 0 {
		t.Errorf("%d bytes are held at the end, %d of blocks", n, tr.Usage().Payload)
	}
	wantMiss(t, tr, it.Info.ID)
}
