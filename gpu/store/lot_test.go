package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// storeIn puts a block into a lot, as whoever writes there by itself does it.
func (h *host) storeIn(s *Store, l *Lot, id block.ID) error {
	p, err := l.Reserve([]block.ID{id})
	if err != nil {
		return err
	}
	if p == nil {
		return tiers.ErrFull
	}
	size := h.shape.FileBytes()
	extents, err := p.Extents(nil, 0, size)
	if err != nil {
		return err
	}
	var crcs []uint32
	for o, e := range extents {
		data := h.content(id, o)
		if _, err := s.pool.files[e.Container].Pwrite(data, e.Offset); err != nil {
			<-p.Abort()
			return err
		}
		crcs = append(crcs, crc32c.Checksum(data))
	}
	p.Written(0, size, crcs)
	_, quiet, err := p.Commit(context.Background())
	<-quiet
	return err
}

func (h *host) mustStoreIn(t *testing.T, s *Store, l *Lot, all []block.ID) {
	t.Helper()
	for _, id := range all {
		if err := h.storeIn(s, l, id); err != nil {
			t.Fatal(err)
		}
	}
}

// scribble writes over all of a lot's containers.
func scribble(t *testing.T, s *Store, l *Lot) {
	t.Helper()
	for _, c := range l.Containers() {
		size, err := s.pool.files[c].Size()
		if err == nil {
			_, err = s.pool.files[c].Pwrite(make([]byte, size+page), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLot: a lot has its room for itself. What is written over there are blocks that were put there, which are misses; and what comes
// free is its own, until it is closed. All of it is there after a restart.
func TestLot(t *testing.T) {
	_, h, o := rig(t, 2, small, 4, 32)
	s := open(t, o)
	h.mustStore(t, s, ids(0, 2))
	l := s.TakeLot()
	if l == nil || l.Files() != 4 || l.Free() != 4 || s.Stats().Free != 26 {
		t.Fatalf("a lot %+v of %+v", l, s.Stats())
	}
	h.mustStoreIn(t, s, l, ids(100, 4))
	if p, err := l.Reserve(ids(104, 1)); p != nil || err != nil {
		t.Errorf("a full lot: %v, %v", p, err)
	}
	for i := range 26 {
		h.mustStore(t, s, ids(2+i, 1))
	}
	if err := h.store(s, ids(50, 1)); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("without room but the lot's: %v", err)
	}
	s.Remove(ids(100, 1)[0])
	if err := h.store(s, ids(50, 1)); !errors.Is(err, tiers.ErrFull) { // it has the removal written
		t.Errorf("a file of the lot: %v", err)
	}
	h.mustStoreIn(t, s, l, ids(104, 1))
	if got := h.check(t, s, append(ids(101, 4), ids(0, 28)...)); got != 32 {
		t.Errorf("%d of 32 blocks", got)
	}
	p, err := l.Reserve(ids(101, 1))
	if err != nil || p == nil || !p.Skips(0) {
		t.Fatalf("a block that is there: %+v, %v", p, err)
	}
	if e, err := p.Extents(nil, 0, 1); len(e) > 0 || err != nil {
		t.Errorf("it is to be written to %v, %v", e, err)
	}
	<-p.Abort()
	closeStored := func(again ...block.ID) *Store {
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		for _, id := range again {
			h.mustStore(t, s, []block.ID{id})
		}
		closeStore(t, s)
		return open(t, o)
	}
	s = closeStored()
	if got := h.check(t, s, append(ids(101, 4), ids(0, 28)...)); got != 32 {
		t.Errorf("%d of 32 blocks after a restart", got)
	}
	if l := s.TakeLot(); l != nil {
		t.Error("a lot of groups with blocks")
	}
	for _, id := range append(ids(101, 4), ids(24, 4)...) {
		s.Remove(id)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l = s.TakeLot(); l == nil {
		t.Fatal("no lot of groups without blocks")
	}
	h.mustStoreIn(t, s, l, ids(200, 3))
	scribble(t, s, l)
	if got := h.check(t, s, append(ids(200, 3), ids(0, 24)...)); got != 24 {
		t.Errorf("%d of 24 blocks beside those that were written over", got)
	}
	s = closeStored(ids(300, 8)...) // what others put there when it was theirs again stays
	if got := h.check(t, s, append(append(ids(200, 3), ids(0, 24)...), ids(300, 8)...)); got != 32 {
		t.Errorf("%d of 32 blocks after a restart", got)
	}
}

// TestLots: lots are of different groups, a quarter of all at most, and their files come back. An unfinished block leaves nothing.
func TestLots(t *testing.T) {
	_, h, o := rig(t, 1, small, 4, 32)
	s := open(t, o)
	a, b := s.TakeLot(), s.TakeLot()
	if a == nil || b == nil || s.TakeLot() != nil || a.Containers()[0] == b.Containers()[0] {
		t.Fatalf("lots %+v and %+v, and one more", a, b)
	}
	p, err := a.Reserve(ids(0, 2))
	if err != nil || a.Free() != 2 {
		t.Fatalf("%v, %d are free", err, a.Free())
	}
	p.Written(0, h.shape.FileBytes(), make([]uint32, 1)) // not all of it
	if n, quiet, err := p.Commit(t.Context()); n != 0 || err == nil {
		t.Errorf("%d blocks that were not written: %v", n, err)
	} else {
		<-quiet
	}
	if a.Free() != 4 || s.Has(ids(0, 1)) != 0 {
		t.Errorf("%d are free", a.Free())
	}
	if p, err = a.Reserve(ids(0, 1)); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if s.Stats().Free != 27 {
		t.Errorf("%+v", s.Stats())
	}
	<-p.Abort()
	b.Close()
	if s.Stats().Free != 32 {
		t.Errorf("%+v", s.Stats())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a = s.TakeLot()
	if err := s.Close(ended); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("a store with a lot is closed: %v", err)
	}
	if s.TakeLot() != nil {
		t.Error("a lot of a closed store")
	}
	a.Close()
	s.late.Wait()
}

// TestLotCrash ends the process, the node or the power at any moment while blocks are put into a lot: each is there whole, or not.
func TestLotCrash(t *testing.T) {
	fs, h, o := rig(t, 2, small, 4, 32)
	type moment struct {
		fs   *vfstest.Crash
		what string
		have int // blocks that have to be there
	}
	var moments []moment
	armed, stored, durable := false, 0, 0
	var mu sync.Mutex // several containers are synced at once
	o.FS = fs.Watch(func(c vfs.Call) {
		mu.Lock()
		defer mu.Unlock()
		if !armed || c.Op == vfs.OpRead {
			return
		}
		for cut, name := range map[vfstest.Cut]string{vfstest.CutProcess: "process", vfstest.CutNode: "node", vfstest.CutPower: "power"} {
			m := moment{fs.After(cut, uint64(len(moments))), fmt.Sprintf("%s before %s of %s", name, c.Op, c.Path), durable}
			if cut == vfstest.CutProcess {
				m.have = stored
			}
			moments = append(moments, m)
		}
	})
	s := open(t, o)
	l := s.TakeLot()
	armed = true
	for i := range 3 {
		h.mustStoreIn(t, s, l, ids(i, 1))
		stored++
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	durable = stored
	s.Remove(ids(0, 1)[0])
	h.mustStoreIn(t, s, l, ids(3, 1))
	armed = false
	l.Close()
	closeStore(t, s)
	some := 0
	for _, m := range moments {
		o := o
		o.FS = m.fs
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", m.what, err)
		}
		there := h.check(t, s, ids(0, 4))
		if some += there; there < min(m.have, 2) || s.Stats().Corrupt != 0 {
			t.Errorf("%s: %d blocks of %d, %+v", m.what, there, m.have, s.Stats())
		}
		closeStore(t, s)
	}
	if some == 0 || len(moments) < 20 {
		t.Errorf("%d blocks at %d moments", some, len(moments))
	}
}

// TestLotGrowth: while groups are made, others have half of those that are ready.
func TestLotGrowth(t *testing.T) {
	disk, _, o := rig(t, 1, small, 4, 64)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: containerName(1), Count: 1, Block: hang})
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	if s.TakeLot() != nil {
		t.Error("a lot of the only group")
	}
	close(hang)
	grown(t, s)
	l := s.TakeLot()
	if l == nil || l.Files() != 4 {
		t.Fatalf("a lot %+v", l)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
