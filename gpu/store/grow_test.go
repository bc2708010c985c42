package store

import (
	"context"
	"errors"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestGrowth: a store is in use while most of its pool is still written; all of it is there in the end, and what was
// stored meanwhile too.
func TestGrowth(t *testing.T) {
	disk, h, o := rig(t, 2, small, 4, 12)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: containerName(2), Count: 1, Block: hang})
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if files, wanted, err := s.Ready(); files != 4 || wanted != 12 || err != nil {
		t.Errorf("%d of %d files, %v", files, wanted, err)
	}
	if err := s.WaitGrown(fs.UntilHung(t.Context(), 1)); !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a pool that grows: %v", err)
	}
	h.mustStore(t, s, ids(0, 3))
	if err := h.store(s, ids(3, 2)); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("two blocks for one file: %v", err)
	}
	close(hang)
	grown(t, s)
	if files, _, err := s.Ready(); files != 12 || err != nil {
		t.Errorf("%d files, %v", files, err)
	}
	h.mustStore(t, s, ids(3, 4))
	h.mustStore(t, s, ids(7, 4))
	h.mustStore(t, s, ids(11, 1))
	if got := h.check(t, s, ids(0, 12)); got != 12 || s.Stats().Free != 0 {
		t.Errorf("%d blocks, %+v", got, s.Stats())
	}
	closeStore(t, s)
	s = open(t, o)
	if got := h.check(t, s, ids(0, 12)); got != 12 {
		t.Errorf("%d blocks after a restart", got)
	}
}

// TestGrowthEnds: a pool that can not grow on reports why and works as it is, and one that is closed grows no more.
func TestGrowthEnds(t *testing.T) {
	for name, c := range map[string]struct {
		fails error
		want  error
	}{"full": {vfs.ErrNoSpace, tiers.ErrFull}, "quota": {vfs.ErrQuota, tiers.ErrFull}, "broken": {vfs.ErrIO, tiers.ErrUnavailable}} {
		t.Run(name, func(t *testing.T) {
			disk, h, o := rig(t, 2, small, 4, 12)
			fs := vfstest.NewFault(disk)
			o.FS = fs
			fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: containerName(5), Err: c.fails})
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.WaitGrown(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
			if files, _, err := s.Ready(); files != 8 || !errors.Is(err, c.want) {
				t.Errorf("%d files, %v", files, err)
			}
			h.mustStore(t, s, ids(0, 4))
			h.mustStore(t, s, ids(4, 4))
			if n := len(disk.Files()); n != 5 {
				t.Errorf("something of the third group is left: %v", disk.Files())
			}
			fs.Clear()
			closeStore(t, s)
			s = open(t, o)
			if got := h.check(t, s, ids(0, 8)); got != 8 || s.Stats().Files != 12 {
				t.Errorf("with room: %d blocks, %+v", got, s.Stats())
			}
		})
	}
	disk, h, o := rig(t, 2, small, 4, 12)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: containerName(2), Count: 1, Block: hang})
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	h.mustStore(t, s, ids(0, 2))
	if err := s.Close(fs.UntilHung(t.Context(), 1)); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("close while the disk hangs: %v", err)
	}
	close(hang)
	if err := s.WaitGrown(t.Context()); !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	s.late.Wait()
	s = open(t, o)
	if got := h.check(t, s, ids(0, 2)); got != 2 || s.Stats().Files != 12 {
		t.Errorf("%d blocks, %+v", got, s.Stats())
	}
}

// TestRoomForLogs: a pool that takes all of a disk leaves room for a full log beside another.
func TestRoomForLogs(t *testing.T) {
	tiny := Shape{Layers: 1, BlockTokens: 1, KVHeads: 1, HeadDim: 1, ElementBytes: 1}
	disk, h, o := rig(t, 1, tiny, 64, 64)
	l := layout{tiny.Objects(), tiny.ObjectBytes(), 1, 4}
	bounded := vfstest.NewBounded(disk, 10*l.containerBytes()+2*page)
	o.FS = bounded
	s := open(t, o)
	if files, _, err := s.Ready(); !errors.Is(err, tiers.ErrFull) || files != 36 {
		t.Fatalf("%d files, %v", files, err)
	}
	h.mustStore(t, s, ids(0, 36))
	for range 3 {
		s.log.failed = vfs.ErrIO // it is written anew
		s.Remove(ids(0, 1)[0])
		h.mustStore(t, s, ids(0, 1))
	}
	if s.head.generation != 4 || s.log.failed != nil {
		t.Errorf("generation %d, %v", s.head.generation, s.log.failed)
	}
}
