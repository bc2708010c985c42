package nvme

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"cascadekv/gpu/store"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// writeIn writes a block to its room, as the owner of a lot does it by itself, and returns its checksums.
func writeIn(t *testing.T, tr *Tier, data []byte, extents []store.Extent) (crcs []uint32) {
	t.Helper()
	paths := tr.store.Containers()
	for _, e := range extents {
		f, err := tr.o.FS.Reopen(paths[e.Container])
		noError(t, err)
		_, err = f.Pwrite(data[:e.Bytes], e.Offset)
		noError(t, err, f.Close())
		crcs, data = append(crcs, crc32c.Checksum(data[:e.Bytes])), data[e.Bytes:]
	}
	return crcs
}

// slotIn has a block written to a lot, up to the slot that is to be committed.
func slotIn(t *testing.T, tr *Tier, l *Lot, it tiers.Item) tiers.Slot {
	t.Helper()
	a := l.Reserve([]int64{it.Info.Size})
	if a == nil {
		t.Fatal("no room")
	}
	crcs := writeIn(t, tr, it.Data, a.Extents(0))
	slots, err := a.Register(t.Context(), [][]uint32{crcs})
	noError(t, err)
	return slots[0]
}

// commitIn is commit by way of a lot.
func commitIn(t *testing.T, tr *Tier, l *Lot, it tiers.Item) error {
	t.Helper()
	return slotIn(t, tr, l, it).Commit(it.Info, it.Names)
}

// lotFiles is how many GPU files a lot of the pool of rig has.
const lotFiles = 8

// usedFiles is what counts as used.
func usedFiles(tr *Tier) int64 { return tr.Usage().Used / unit }

// TestLot: blocks that their owner writes to a lot are blocks as any: they are read, named, evicted and found again. All that the lot has
// counts as used until it is closed, and nobody else gets it.
func TestLot(t *testing.T) {
	_, o := rig(t)
	tr := opened(t, o)
	l := tr.TakeLot()
	if l == nil || usedFiles(tr) != lotFiles {
		t.Fatalf("%d GPU files are used", usedFiles(tr))
	}
	a, b, c := item(1, 2*unit, name("a", 1)), item(2, 3*unit+5, name("b", 2)), item(3, unit)
	noError(t, commitIn(t, tr, l, a), commitIn(t, tr, l, b))
	wantBlocks(t, tr, a, b)
	if got := l.Reserve([]int64{unit, unit, unit}); got == nil || got.Blocks() != 2 || l.Reserve([]int64{unit}) != nil {
		t.Error("two GPU files are free, and are not what there is")
	} else {
		got.Abort()
	}
	if l.Reserve([]int64{3 * unit}) != nil || l.Reserve([]int64{0}) != nil {
		t.Error("a block for which there is no room has some")
	}
	wantErr(t, "the same block", commitIn(t, tr, l, tiers.Item{Info: a.Info, Data: a.Data}), tiers.ErrExists)
	noError(t, tr.store.Sync(t.Context())) // the room of what was refused is free then
	other := c
	other.Info.Size++
	wantErr(t, "another size", slotIn(t, tr, l, c).Commit(other.Info, nil), tiers.ErrUnavailable)
	s := slotIn(t, tr, l, c)
	s.Abort()
	s.Abort()
	_, err := s.Write(0, 0, nil)
	_, crcErr := s.CRC(0, 0, 0)
	wantErr(t, "bytes of a slot that is written", errors.Join(err, crcErr, s.Hash(nil, 0, 0), s.CopyFrom(t.Context(), nil)), tiers.ErrUnavailable)
	p, err := tr.Pin(b.Info.ID)
	noError(t, err)
	if _, release, ok := p.(*pin).Extents(); !ok {
		t.Error("a block of a lot is not on the disk alone")
	} else {
		release()
	}
	p.Release()
	noError(t, tr.Evict(a.Info.ID), tr.store.Sync(t.Context()))
	if usedFiles(tr) != lotFiles || l.lot.Free() != 4 {
		t.Errorf("%d GPU files are used, %d are free", usedFiles(tr), l.lot.Free())
	}
	noError(t, commitIn(t, tr, l, c))
	l.Close()
	l.Close()
	if usedFiles(tr) != 5 || l.Reserve([]int64{unit}) != nil {
		t.Errorf("%d GPU files are used", usedFiles(tr))
	}
	noError(t, tr.Evict(c.Info.ID))
	if usedFiles(tr) != 4 {
		t.Errorf("%d GPU files are used", usedFiles(tr))
	}
	noError(t, tr.Close())
	tr = opened(t, o)
	wantBlocks(t, tr, b)
	if names := recoveredNames(t, tr); len(names) != 1 || names["b"] != b.Info.ID || usedFiles(tr) != 4 {
		t.Errorf("names %v, %d GPU files are used", names, usedFiles(tr))
	}
}

// TestLotArrivals: of blocks that arrive together those are there that were written, and the others leave nothing.
func TestLotArrivals(t *testing.T) {
	_, o := rig(t)
	tr := opened(t, o)
	l := tr.TakeLot()
	a, b := item(1, 2*unit), item(2, 2*unit)
	got := l.Reserve([]int64{2 * unit, 2 * unit, 2 * unit})
	crcs := [][]uint32{writeIn(t, tr, a.Data, got.Extents(0)), nil, writeIn(t, tr, b.Data, got.Extents(2))}
	slots, err := got.Register(t.Context(), crcs)
	if err != nil || slots[0] == nil || slots[1] != nil || slots[2] == nil {
		t.Fatalf("%v, %v", slots, err)
	}
	noError(t, slots[0].Commit(a.Info, nil), slots[2].Commit(b.Info, nil))
	wantBlocks(t, tr, a, b)
	if l.used != 4 {
		t.Errorf("%d GPU files of the lot are used", l.used)
	}
	// What is on the disk and not what was registered is damage, and gone.
	c := item(3, unit)
	got = l.Reserve([]int64{unit})
	crcs = [][]uint32{writeIn(t, tr, c.Data, got.Extents(0))}
	writeIn(t, tr, item(4, unit).Data, got.Extents(0))
	slots, err = got.Register(t.Context(), crcs)
	noError(t, err, slots[0].Commit(c.Info, nil))
	_, err = read(t.Context(), tr, c)
	wantErr(t, "other bytes than those of its checksum", err, tiers.ErrCorrupt)
	wantMiss(t, tr, c)
	if l.used != 4 {
		t.Errorf("%d GPU files of the lot are used", l.used)
	}
	l.Close()
}

// TestLotTrouble: a disk that fails or hangs when blocks are to be durable costs them, and their room until it answers.
func TestLotTrouble(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	tr := opened(t, o)
	l := tr.TakeLot()
	it := item(1, 2*unit)
	arrive := func(ctx context.Context) ([]tiers.Slot, error) {
		a := l.Reserve([]int64{it.Info.Size})
		return a.Register(ctx, [][]uint32{writeIn(t, tr, it.Data, a.Extents(0))})
	}
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: poolPath, Err: vfs.ErrIO, Count: 1})
	slots, err := arrive(t.Context())
	wantErr(t, "a sync that fails", err, tiers.ErrUnavailable)
	if slots[0] != nil || l.used != 0 {
		t.Errorf("%v, %d GPU files of the lot are used", slots, l.used)
	}
	fs.Clear()
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: poolPath, Block: hang})
	_, err = arrive(fs.UntilHung(t.Context(), 1))
	wantErr(t, "a sync that hangs", err, tiers.ErrUnavailable)
	if l.used != 2 {
		t.Errorf("%d GPU files of the lot are used", l.used)
	}
	fs.Clear()
	close(hang)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		tr.mu.Lock()
		used := l.used
		tr.mu.Unlock()
		if used == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d GPU files of the lot are used", used)
		}
	}
	noError(t, commitIn(t, tr, l, it))
	wantBlocks(t, tr, it)
	a := l.Reserve([]int64{unit})
	l.Close()
	if a.Abort(); usedFiles(tr) != 2 {
		t.Errorf("%d GPU files are used", usedFiles(tr))
	}
}

// TestLotFiles: the owner of a lot may write to its files, and to no others.
func TestLotFiles(t *testing.T) {
	tr := mustOpen(t, inTest(t.TempDir(), 64*unit))
	defer tr.Close()
	l := tr.TakeLot()
	defer l.Close()
	all, err := tr.Containers(t.Context())
	noError(t, err)
	files, err := l.Open(t.Context())
	noError(t, err)
	for i, f := range all {
		_, err := f.WriteAt(make([]byte, page), page)
		if err == nil {
			t.Errorf("container %d can be written to", i)
		}
		noError(t, f.Close())
	}
	own := l.Containers()
	for _, c := range own {
		_, err := files[c].WriteAt(make([]byte, page), page)
		noError(t, err, files[c].Close())
	}
	if len(own) == 0 || len(files) != len(own) {
		t.Errorf("%d files of %d are open", len(files), len(own))
	}
	noError(t, os.Remove(tr.store.Containers()[own[len(own)-1]]))
	_, err = l.Open(t.Context())
	wantErr(t, "a file that is gone", err, tiers.ErrUnavailable)
}

// TestLotThatIsFull: who finds no room in a lot has the log written if blocks have left, whose room is free then, and else not: that is a sync of the disk.
func TestLotThatIsFull(t *testing.T) {
	_, o := rig(t)
	tr := opened(t, o)
	l := tr.TakeLot()
	defer l.Close()
	a, b := item(1, 2*unit), item(2, 6*unit)
	noError(t, commitIn(t, tr, l, a), commitIn(t, tr, l, b), tr.Sync(t.Context()))
	passes := func() uint64 {
		defer tr.lock()()
		return tr.mu.begun
	}
	before := passes()
	for range 20 {
		if l.Reserve([]int64{unit}) != nil {
			t.Fatal("a full lot has room")
		}
		time.Sleep(time.Millisecond)
	}
	if n := passes() - before; n > 0 {
		t.Errorf("the log was written %d times for nothing", n)
	}
	noError(t, tr.Evict(a.Info.ID))
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if got := l.Reserve([]int64{2 * unit}); got != nil {
			got.Abort()
			return
		}
		if time.Now().After(end) {
			t.Fatal("the room of what has left does not come back")
		}
	}
}

// TestLotOfNone: a tier that is being closed has no lot for anybody, also while it waits for who still has a block.
func TestLotOfNone(t *testing.T) {
	_, o := rig(t)
	tr := opened(t, o)
	it := item(1, unit)
	noError(t, tr.Put(t.Context(), it))
	p, err := tr.Pin(it.Info.ID)
	noError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- tr.Close() }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		p, err := tr.Pin(it.Info.ID)
		if errors.Is(err, tiers.ErrClosed) {
			break
		}
		noError(t, err)
		if p.Release(); time.Now().After(end) {
			t.Fatal("it is not being closed")
		}
	}
	if tr.TakeLot() != nil {
		t.Error("a tier that is being closed gives a lot")
	}
	p.Release()
	noError(t, <-closed)
}
