package tiertest

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// memory runs the tests of tiers.Memory.
func (c Config) memory(t *testing.T) {
	if _, ok := c.fresh(t, roomy).Tier.(tiers.Memory); !ok {
		t.Skip("the tier has no memory of its own")
	}
	t.Run("slot", c.slot)
	t.Run("slot without room", c.slotFull)
	t.Run("slot with room to spare", c.slotRoom)
	t.Run("copies", c.copies)
	t.Run("uncommitted", c.uncommitted)
	t.Run("rename", c.rename)
	t.Run("file", c.file)
	t.Run("places", c.places)
	t.Run("stays", c.stays)
	t.Run("places after crash", c.placesAfterCrash)
	t.Run("places under load", c.placesUnderLoad)
	t.Run("watched", c.watched)
	t.Run("watched pins", c.watchedPins)
	t.Run("close with slot", c.closeWithSlot)
}

func (o *opened) mem(t *testing.T) tiers.Memory {
	t.Helper()
	m, ok := o.Tier.(tiers.Memory)
	if !ok {
		t.Fatal("the tier lost its memory")
	}
	return m
}

// reserve fills a slot with the bytes of it.
func reserve(t *testing.T, m tiers.Memory, it tiers.Item) tiers.Slot {
	t.Helper()
	s, err := m.Reserve(it.Info.Size)
	if err != nil {
		t.Fatalf("Reserve(%d): %v", it.Info.Size, err)
	}
	if b := s.Bytes(); b != nil && int64(len(b)) != it.Info.Size {
		t.Fatalf("Reserve(%d) gave %d bytes", it.Info.Size, len(b))
	}
	write(t, s, it)
	t.Cleanup(s.Abort) // a slot left open would hold up the tier's Close
	return s
}

func commit(t *testing.T, m tiers.Memory, it tiers.Item) {
	t.Helper()
	if err := reserve(t, m, it).Commit(it.Info, it.Names); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

func (c Config) slot(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	for i, size := range sizes {
		it := item(uint64(i), size, name("k", uint64(i+1)))
		s := reserve(t, m, it)
		wantMiss(t, tr, it.Info.ID)
		if err := s.Commit(it.Info, it.Names); err != nil {
			t.Fatalf("Commit of %d bytes: %v", size, err)
		}
		s.Abort()
		readBack(t, tr, it)
	}
	switch s, err := m.ReserveNow(100); {
	case err == nil && int64(len(s.Bytes())) != 100:
		t.Errorf("ReserveNow(100) gave %d bytes", len(s.Bytes()))
	case err == nil:
		it := item(1000, 100, name("now", 1000))
		write(t, s, it)
		if err := s.Commit(it.Info, it.Names); err != nil {
			t.Errorf("Commit: %v", err)
		}
		readBack(t, tr, it)
	case !errors.Is(err, tiers.ErrNotNow):
		t.Errorf("ReserveNow of a tier with room: %v", err)
	}
	before := tr.Usage()
	for i, size := range sizes { // its room is given back
		again := item(uint64(i), size)
		wantErr(t, "Commit of a stored block", reserve(t, m, again).Commit(again.Info, nil), tiers.ErrExists)
	}
	gone := reserve(t, m, item(70, 5000))
	gone.Abort()
	gone.Abort()
	if u := tr.Usage(); u != before {
		t.Errorf("a failed commit and an abort changed usage from %+v to %+v", before, u)
	}
}

func (c Config) slotFull(t *testing.T) {
	tr := c.fresh(t, tight)
	m := tr.mem(t)
	_, err := m.Reserve(tr.Usage().Capacity + 1)
	wantErr(t, "Reserve of more than the capacity", err, tiers.ErrTooLarge)
	var slots []tiers.Slot
	for i := range tight/(64<<10) + 1 {
		s, err := m.Reserve(64 << 10)
		if err != nil {
			wantErr(t, "Reserve", err, tiers.ErrFull)
			break
		}
		write(t, s, item(uint64(i), 64<<10))
		slots = append(slots, s)
	}
	if len(slots)*(64<<10) > tight {
		t.Fatalf("%d slots of 64 KiB in %d bytes", len(slots), tight)
	}
	for i, s := range slots {
		if !holds(s, item(uint64(i), 64<<10)) {
			t.Fatalf("slot %d shares bytes with another", i)
		}
		s.Abort()
	}
	for range slots {
		s, err := m.Reserve(64 << 10)
		if err != nil {
			t.Fatalf("Reserve after all slots were given back: %v", err)
		}
		defer s.Abort()
	}
}

// slotRoom tries that what a slot's capacity has beyond its size is its own.
func (c Config) slotRoom(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	var slots []tiers.Slot
	var items []tiers.Item
	for i, size := range []int64{1, 100, 700, 3000, 9000, 9000, 43008, 43008, 70001} {
		it := item(uint64(i), size)
		s := reserve(t, m, it)
		slots, items = append(slots, s), append(items, it)
	}
	for _, s := range slots {
		for room, i := s.Bytes(), len(s.Bytes()); i < cap(room); i++ {
			room[:cap(room)][i] = 0xee
		}
	}
	for i, s := range slots {
		if err := s.Commit(items[i].Info, nil); err != nil {
			t.Fatalf("Commit: %v", err)
		}
	}
	for _, it := range items {
		readBack(t, tr, it)
	}
}

// uncommitted tries that a slot is invisible until it is committed, also to
// the process that starts after a crash, and that its room comes back then.
func (c Config) uncommitted(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	kept, open := item(1, 42<<10, name("kept", 1)), item(2, 42<<10, name("open", 2))
	commit(t, m, kept)
	s := reserve(t, m, open)
	wantMiss(t, tr, open.Info.ID)
	if u := tr.Usage(); u.Blocks != 1 {
		t.Errorf("usage counts an uncommitted slot: %+v", u)
	}
	if c.Persistent {
		again := c.crashed(t, tr, roomy)
		again.wantBlocks(t, kept)
		again.wantNames(t, map[string]nameRecord{"kept": {id: kept.Info.ID, name: kept.Names[0]}})
		wantMiss(t, again, open.Info.ID)
		put(t, again, open)
		again.wantBlocks(t, kept)
		readBack(t, again, open)
		return
	}
	s.Abort()
	put(t, tr, open)
	readBack(t, tr, open)
}

func (c Config) rename(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	provisional := func(n uint64, it tiers.Item) tiers.Item {
		it.Info.ID = block.Provisional(n)
		return it
	}
	done, stays := item(1, 9000, name("done", 1)), item(2, 9000, name("stays", 2))
	commit(t, m, provisional(1, done))
	commit(t, m, provisional(2, stays))
	readBack(t, tr, provisional(1, done))

	p, err := tr.Pin(block.Provisional(1))
	if err != nil {
		t.Fatalf("Pin: %v", err)
	}
	if err := m.Rename(block.Provisional(1), done.Info.ID); err != nil {
		t.Fatalf("Rename of a pinned block: %v", err)
	}
	if !holds(p, done) {
		t.Error("Rename moved the bytes of a pinned block")
	}
	p.Release()
	readBack(t, tr, done)
	wantMiss(t, tr, block.Provisional(1))

	twin := provisional(3, item(1, 9000, name("twin", 3)))
	commit(t, m, twin)
	wantErr(t, "Rename to a stored id", m.Rename(block.Provisional(3), done.Info.ID), tiers.ErrExists)
	readBack(t, tr, twin)
	readBack(t, tr, done)
	wantErr(t, "Rename of an absent id", m.Rename(block.Provisional(9), item(9, 1).Info.ID), tiers.ErrNotFound)
	if !c.Persistent {
		return
	}
	again := c.crashed(t, tr, roomy)
	again.wantBlocks(t, done, provisional(2, stays), twin)
	again.wantNames(t, map[string]nameRecord{
		"done":  {id: done.Info.ID, name: done.Names[0]},
		"stays": {id: block.Provisional(2), name: stays.Names[0]},
		"twin":  {id: twin.Info.ID, name: twin.Names[0]},
	})
	if _, ok := again.blocks[block.Provisional(1)]; ok {
		t.Error("recovery knows a block by the id it had before Rename")
	}
}

// file tries that a pin's bytes are where the descriptor and offset say.
func (c Config) file(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	fd := m.File()
	if fd < 0 {
		t.Skip("the tier has no file")
	}
	for i, size := range sizes {
		it := item(uint64(i), size)
		put(t, tr, it)
		p, err := tr.Pin(it.Info.ID)
		if err != nil {
			t.Fatalf("Pin: %v", err)
		}
		got := make([]byte, size)
		if n, err := unix.Pread(fd, got, p.Offset()); err != nil || int64(n) != size && size > 0 {
			t.Fatalf("pread: %d bytes, %v", n, err)
		}
		if !bytes.Equal(got, it.Data) {
			t.Errorf("%d bytes: wrong bytes behind the descriptor", size)
		}
		p.Release()
	}
}

// closeWithSlot tries that Close leaves the memory of an open slot alone.
func (c Config) closeWithSlot(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	other := item(2, 100)
	put(t, tr, other)
	it := item(1, 42<<10)
	s := reserve(t, m, it)
	var ended atomic.Bool
	closed := make(chan error, 1)
	go func() {
		err := tr.Close()
		if !ended.Load() {
			err = errors.Join(err, errors.New("returned while a slot was open"))
		}
		closed <- err
	}()
	untilClosed(t, tr, other.Info.ID)
	write(t, s, it)
	ended.Store(true)
	if err := s.Commit(it.Info, nil); err != nil && !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("Commit while the tier closes: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
}
