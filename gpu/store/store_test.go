package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestRoundTrip: what one store wrote the next one reads, layer by layer, on any
// directory, through the page cache or past it.
func TestRoundTrip(t *testing.T) {
	for name, direct := range map[string]bool{"cached": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(small, 10)
			o := h.options([]string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}, 10)
			o.Direct = direct
			s := open(t, o)
			all := ids(0, 10)
			h.mustStore(t, s, all)
			if got := s.Stats(); got.Blocks != 10 || got.Free != 0 || got.Stored != 10 || got.Files != 10 {
				t.Errorf("%+v", got)
			}
			closeStore(t, s)
			s = open(t, o)
			if got := s.Has(append(all[:10:10], ids(50, 1)...)); got != 10 {
				t.Errorf("%d of 10 blocks", got)
			}
			h.wipe()
			g, err := s.Retrieve(all)
			if err != nil || g.Blocks() != 10 {
				t.Fatal(err, g.Blocks())
			}
			slots := []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
			for l := range small.Layers {
				if errs := g.RetrieveLayer(context.Background(), l, slots); errs != nil {
					t.Fatal(errs)
				}
			}
			<-g.Close()
			for i, id := range all {
				if !h.holds(id, 9-i) {
					t.Errorf("block %d has other bytes", i)
				}
			}
			seen := 0
			s.Each(func(block.ID) bool { seen++; return seen < 7 })
			if seen != 7 {
				t.Errorf("%d blocks listed", seen)
			}
		})
	}
}

// TestReserve: a file for each block that is not stored and not being stored;
// all of them, or none.
func TestReserve(t *testing.T) {
	_, h, o := rig(t, 2, small, 8, 8)
	s := open(t, o)
	ctx := context.Background()
	h.mustStore(t, s, ids(0, 3))
	first, err := s.Reserve(ctx, ids(2, 3)) // 2 is stored
	if err != nil || !first.Skips(0) || first.Skips(1) || first.Skips(2) {
		t.Fatal(err)
	}
	second, err := s.Reserve(ctx, append(ids(3, 3), ids(5, 1)...)) // 3 and 4 are on their way, 5 twice
	if err != nil || !second.Skips(0) || !second.Skips(1) || second.Skips(2) || !second.Skips(3) {
		t.Fatal(err)
	}
	if got := s.Stats().Free; got != 2 {
		t.Errorf("%d files are free", got)
	}
	if _, err := s.Reserve(ctx, ids(10, 3)); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("three of two: %v", err)
	}
	if p, err := s.Reserve(ctx, ids(10, 2)); err != nil {
		t.Errorf("what was refused left something behind: %v", err)
	} else {
		<-p.Abort()
	}
	<-first.Abort()
	<-second.Abort()
	if got := s.Stats(); got.Free != 5 || got.Blocks != 3 {
		t.Errorf("%+v", got)
	}
}

// TestCommitIsWhole: a block of which a layer was not written is not stored; the
// others are.
func TestCommitIsWhole(t *testing.T) {
	_, _, o := rig(t, 2, small, 4, 4)
	s := open(t, o)
	ctx := context.Background()
	p, err := s.Reserve(ctx, ids(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StoreLayer(ctx, 0, upTo(2)); err != nil {
		t.Fatal(err)
	}
	if n, quiet, err := p.Commit(ctx); n != 0 || !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("%d blocks, %v", n, err)
	} else {
		<-quiet
	}
	if s.Has(ids(0, 1)) != 0 || s.Stats().Free != 4 {
		t.Errorf("%+v", s.Stats())
	}
	for _, c := range []struct {
		layer int
		slots []int
	}{{-1, upTo(2)}, {3, upTo(2)}, {0, upTo(1)}, {0, []int{0, 4}}, {0, []int{-1, 0}}} {
		p, err := s.Reserve(ctx, ids(0, 2))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.StoreLayer(ctx, c.layer, c.slots); !errors.Is(err, ErrMemory) {
			t.Errorf("layer %d of slots %v: %v", c.layer, c.slots, err)
		}
		<-p.Abort()
	}
}

// TestRemove: a file is used again only after the log has the removal, and not
// while somebody reads it.
func TestRemove(t *testing.T) {
	_, h, o := rig(t, 2, small, 8, 4)
	s := open(t, o)
	all := ids(0, 4)
	h.mustStore(t, s, all)
	g, err := s.Retrieve(all[:2])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range all {
		s.Remove(id)
		s.Remove(id)
	}
	s.Remove(ids(77, 1)[0])
	if got := s.Stats(); got.Blocks != 0 || got.Free != 0 || got.Removed != 2 {
		t.Errorf("%+v", got)
	}
	if err := h.store(s, ids(10, 3)); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("two files of four are pinned: %v", err)
	}
	h.mustStore(t, s, ids(10, 2))
	h.wipe()
	for l := range small.Layers {
		if errs := g.RetrieveLayer(context.Background(), l, upTo(2)); errs != nil {
			t.Fatal(errs)
		}
	}
	if !h.holds(all[0], 0) || !h.holds(all[1], 1) {
		t.Error("a pinned block was written over")
	}
	<-g.Close()
	<-g.Close()
	h.mustStore(t, s, ids(20, 2))
	if got := h.check(t, s, append(ids(10, 2), ids(20, 2)...)); got != 4 {
		t.Errorf("%d of 4 blocks", got)
	}
	closeStore(t, s)
	s = open(t, o)
	if got := h.check(t, s, append(all, append(ids(10, 2), ids(20, 2)...)...)); got != 4 {
		t.Errorf("%d of 4 blocks after a restart", got)
	}
	if _, err := s.Retrieve(all); err != nil {
		t.Error(err)
	}
	closeStore(t, s)
	if _, err := s.Retrieve(all); !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := s.Reserve(context.Background(), all); !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestFlippedBit: each bit of an object counts, and what fails once is forgotten.
func TestFlippedBit(t *testing.T) {
	fs, h, o := rig(t, 2, small, 4, 4)
	s := open(t, o)
	all := ids(0, 4)
	h.mustStore(t, s, all)
	c, off := s.layout.place(2, 3) // keys of layer 1 are object 2
	name := filepath.Join(o.Dirs[c%2], containerName(c))
	if err := fs.Flip(name, off+small.ObjectBytes()-1, 0x10); err != nil {
		t.Fatal(err)
	}
	if err := fs.Flip(name, off+small.ObjectBytes(), 0x10); err != nil { // padding
		t.Fatal(err)
	}
	g, err := s.Retrieve(all)
	if err != nil {
		t.Fatal(err)
	}
	for l := range small.Layers {
		errs := g.RetrieveLayer(context.Background(), l, upTo(4))
		for i := range 4 {
			if bad := l == 1 && i == 2; bad != (errs != nil && errors.Is(errs[i], tiers.ErrCorrupt)) {
				t.Errorf("layer %d, block %d: %v", l, i, errs)
			}
		}
	}
	<-g.Close()
	if got := s.Has(all); got != 2 || s.Stats().Corrupt != 1 {
		t.Errorf("%d blocks in front, %+v", got, s.Stats())
	}
	closeStore(t, s)
	if s = open(t, o); s.Has(all) != 2 {
		t.Error("it is back after a restart")
	}
}

// TestErrors: an operation of the file system that fails is a miss, or a block that is not
// stored, and the store goes on.
func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		rule vfstest.Rule
		put  bool // fails
	}{
		"read":           {vfstest.Rule{Op: vfs.OpRead, Path: containerSuffix, Count: 1, Err: vfs.ErrIO}, false},
		"short read":     {vfstest.Rule{Op: vfs.OpRead, Path: containerSuffix, Count: 1, Bytes: 100, Err: vfs.ErrIO}, false},
		"write":          {vfstest.Rule{Op: vfs.OpWrite, Path: containerSuffix, After: 3, Count: 1, Bytes: 100, Err: vfs.ErrIO}, true},
		"fsync":          {vfstest.Rule{Op: vfs.OpSync, Path: containerSuffix, Count: 1, Err: vfs.ErrIO}, true},
		"write of a log": {vfstest.Rule{Op: vfs.OpWrite, Path: logSuffix, Count: 1, Bytes: 30, Err: vfs.ErrIO}, true},
	} {
		t.Run(name, func(t *testing.T) {
			disk, h, o := rig(t, 2, small, 4, 8)
			fs := vfstest.NewFault(disk)
			o.FS = fs
			s := open(t, o)
			old := ids(0, 2)
			h.mustStore(t, s, old)
			fs.Add(c.rule)
			all := ids(10, 2)
			if err := h.store(s, all); (err != nil) != c.put || err != nil && !errors.Is(err, tiers.ErrUnavailable) {
				t.Errorf("put: %v", err)
			}
			found := h.check(t, s, append(old, all...))
			if c.put && (s.Has(all) != 0 || found != 2) || !c.put && found != 3 {
				t.Errorf("%d blocks came, %d of those that were put", found, s.Has(all))
			}
			h.mustStore(t, s, ids(20, 4))
			closeStore(t, s)
			s = open(t, o)
			if got := h.check(t, s, append(append(old, all...), ids(20, 4)...)); got != 6 && c.put || got != 8 && !c.put {
				t.Errorf("%d blocks after a restart", got)
			}
		})
	}
}

// TestFailedRecord: a record that reached the log though its write failed stands for
// nothing, also after its GPU file was written to again.
func TestFailedRecord(t *testing.T) {
	disk, dirs := disks(t, 2)
	fs := vfstest.NewFault(disk)
	h := newHost(small, 4)
	o := h.options(dirs, 4)
	o.FS, o.unlocked = fs, true
	s := open(t, o)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: logPrefix, Count: 1, Bytes: 1 << 20, Err: vfs.ErrIO})
	if err := h.store(s, ids(0, 4)); !errors.Is(err, tiers.ErrUnavailable) {
		t.Fatal(err)
	}
	ctx := context.Background()
	p, err := s.Reserve(ctx, ids(10, 4))
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids(10, 4) {
		h.put(id, i)
	}
	if err := p.StoreLayer(ctx, 1, upTo(4)); err != nil {
		t.Fatal(err)
	}
	o.FS = disk.After(vfstest.CutProcess, 1)
	after := open(t, o)
	if got := h.check(t, after, ids(0, 4)); got != after.Stats().Blocks || after.Stats().Corrupt != 0 {
		t.Errorf("%d blocks came, %+v", got, after.Stats())
	}
	<-p.Abort()
}

// TestFullDisk: a pool has as many containers as there is room for, evenly.
func TestFullDisk(t *testing.T) {
	disk, dirs := disks(t, 2)
	h := newHost(small, 4)
	o := h.options(dirs, 100)
	o.unlocked = true
	l := layout{small.Objects(), small.ObjectBytes(), 2, 4}
	o.FS = vfstest.NewBounded(disk, 5*l.containerBytes()+100_000)
	s := open(t, o)
	if got := s.Stats(); got.Files != 8 || got.Wanted != 100 || got.Bytes != 4*l.containerBytes() {
		t.Errorf("%+v", got)
	}
	h.mustStore(t, s, ids(0, 4))
	h.mustStore(t, s, ids(4, 4))
	if err := h.store(s, ids(8, 1)); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("a ninth: %v", err)
	}
	closeStore(t, s)
	if s = open(t, o); s.Has(ids(0, 8)) != 8 {
		t.Errorf("%+v", s.Stats())
	}
	third, dirs := disks(t, 2)
	o.Dirs, o.FS = dirs, vfstest.NewBounded(third, 4*l.containerBytes())
	if s = open(t, o); s.Stats().Files != 4 {
		t.Errorf("no room for the log behind two groups: %+v", s.Stats())
	}
	h.mustStore(t, s, ids(0, 4))
	closeStore(t, s)
	if s = open(t, o); s.Has(ids(0, 4)) != 4 || s.Stats().Files != 4 {
		t.Errorf("%+v", s.Stats())
	}
	closeStore(t, s)
	other, dirs := disks(t, 2)
	o.Dirs, o.FS = dirs, vfstest.NewBounded(other, l.containerBytes())
	if _, err := Open(context.Background(), o); !errors.Is(err, tiers.ErrFull) {
		t.Errorf("no room at all: %v", err)
	}
}

// TestFullLog: with no room for the log puts fail and gets go on; with room again both do.
func TestFullLog(t *testing.T) {
	disk, h, o := rig(t, 2, small, 4, 8)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	s := open(t, o)
	old := ids(0, 4)
	h.mustStore(t, s, old)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: logPrefix, Bytes: 11, Err: vfs.ErrNoSpace})
	for range 3 {
		if err := h.store(s, ids(10, 2)); !errors.Is(err, tiers.ErrFull) {
			t.Errorf("put: %v", err)
		}
	}
	s.Remove(old[3])
	if got := h.check(t, s, old); got != 3 {
		t.Errorf("%d blocks came", got)
	}
	fs.Clear()
	h.mustStore(t, s, ids(10, 4))
	closeStore(t, s)
	s = open(t, o)
	if got := h.check(t, s, append(old, ids(10, 4)...)); got != 7 {
		t.Errorf("%d blocks after a restart", got)
	}
}

// TestHangingDisk: calls end with their context; memory and files stay in use until
// the disk has answered.
func TestHangingDisk(t *testing.T) {
	disk, h, o := rig(t, 2, small, 4, 4)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	s := open(t, o)
	all := ids(0, 2)
	h.mustStore(t, s, all)
	hang := make(chan struct{})
	for _, op := range []vfs.Op{vfs.OpRead, vfs.OpWrite, vfs.OpSync} {
		fs.Add(vfstest.Rule{Op: op, Block: hang})
	}
	ended := func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}
	g, err := s.Retrieve(all)
	if err != nil {
		t.Fatal(err)
	}
	if errs := g.RetrieveLayer(fs.UntilHung(context.Background(), 4), 0, upTo(2)); errs == nil || !errors.Is(errs[1], context.Canceled) || !errors.Is(errs[0], tiers.ErrUnavailable) {
		t.Errorf("read: %v", errs)
	}
	quiet := g.Close()
	p, err := s.Reserve(context.Background(), ids(10, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StoreLayer(fs.UntilHung(context.Background(), 6), 0, upTo(1)); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("write: %v", err)
	}
	s.Remove(all[0])
	if got := s.Stats(); got.Removed != 0 {
		t.Errorf("a block that is still read is to be used again: %+v", got)
	}
	select {
	case <-quiet:
		t.Error("the read has not ended")
	default:
	}
	if err := s.Close(ended()); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	close(hang)
	<-quiet
	<-p.Abort()
}

// TestOtherPools: what is there of another model, or of directories in another order, is
// replaced, and its blocks are missing.
func TestOtherPools(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, fs *vfstest.Crash, o *Options){
		"another shape": func(t *testing.T, fs *vfstest.Crash, o *Options) {
			h := newHost(Shape{Layers: 3, BlockTokens: 16, KVHeads: 4, HeadDim: 32, ElementBytes: 4}, 4)
			o.Shape, o.Memory, o.Bytes = h.shape, h.memory(), h.bytes
		},
		"fewer directories": func(t *testing.T, fs *vfstest.Crash, o *Options) { o.Dirs = o.Dirs[:1] },
		"another order":     func(t *testing.T, fs *vfstest.Crash, o *Options) { o.Dirs[0], o.Dirs[1] = o.Dirs[1], o.Dirs[0] },
		"containers of 2":   func(t *testing.T, fs *vfstest.Crash, o *Options) { o.ContainerFiles = 2 },
		"no container": func(t *testing.T, fs *vfstest.Crash, o *Options) {
			if err := fs.Remove(filepath.Join(o.Dirs[1], containerName(1))); err != nil {
				t.Fatal(err)
			}
		},
		"a damaged header": func(t *testing.T, fs *vfstest.Crash, o *Options) {
			if err := fs.Flip(filepath.Join(o.Dirs[0], containerName(0)), 2000, 1); err != nil {
				t.Fatal(err)
			}
		},
		"a container of another": func(t *testing.T, fs *vfstest.Crash, o *Options) {
			for _, r := range [][2]string{{containerName(0), "x"}, {containerName(2), containerName(0)}, {"x", containerName(2)}} {
				if err := fs.Rename(filepath.Join(o.Dirs[0], r[0]), filepath.Join(o.Dirs[0], r[1])); err != nil {
					t.Fatal(err)
				}
			}
		},
		"no log": func(t *testing.T, fs *vfstest.Crash, o *Options) {
			for _, f := range fs.Files() {
				if strings.HasSuffix(f, logSuffix) {
					if err := fs.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, h, o := rig(t, 2, small, 8, 8)
			s := open(t, o)
			all := ids(0, 8)
			h.mustStore(t, s, all)
			closeStore(t, s)
			change(t, fs, &o)
			s = open(t, o)
			left := s.Has(ids(4, 4)) // the second container of each disk
			if s.Has(all) != 0 || left != 0 && name != "no container" && name != "a damaged header" {
				t.Errorf("%d and %d blocks", s.Has(all), left)
			}
			if (name == "no container" || name == "a damaged header") && left != 4 {
				t.Errorf("%d blocks of the containers that are whole", left)
			}
			if o.Shape == small {
				if got := h.check(t, s, all); got != left {
					t.Errorf("%d blocks came", got)
				}
				h.mustStore(t, s, ids(20, 4))
				if got := h.check(t, s, ids(20, 4)); got != 4 {
					t.Errorf("%d new blocks", got)
				}
			}
		})
	}
}

// TestSmaller: a pool that is to have fewer files keeps the blocks in those it has.
func TestSmaller(t *testing.T) {
	fs, h, o := rig(t, 2, small, 12, 12)
	s := open(t, o)
	h.mustStore(t, s, ids(0, 12))
	closeStore(t, s)
	o.Files = 6
	s = open(t, o)
	if got := h.check(t, s, ids(0, 12)); got != 6 || s.Stats().Files != 6 {
		t.Errorf("%d blocks, %+v", got, s.Stats())
	}
	closeStore(t, s)
	if n := len(fs.Files()); n != 2*2+1 {
		t.Errorf("%d files: %v", n, fs.Files())
	}
	o.Files = 12
	s = open(t, o)
	if got := h.check(t, s, ids(0, 12)); got != 6 || s.Stats().Free != 6 {
		t.Errorf("%d blocks, %+v", got, s.Stats())
	}
}

func TestOneProcess(t *testing.T) {
	h := newHost(small, 4)
	o := h.options([]string{t.TempDir()}, 4)
	s := open(t, o)
	if _, err := Open(context.Background(), o); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("a second one: %v", err)
	}
	two := o
	two.Dirs = []string{t.TempDir(), o.Dirs[0]}
	if _, err := Open(context.Background(), two); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("a second one whose second directory it is: %v", err)
	}
	closeStore(t, s)
	closeStore(t, open(t, o))
	o.Dirs = []string{filepath.Join(o.Dirs[0], "no")}
	if _, err := Open(context.Background(), o); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("no directory: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o.Dirs = []string{t.TempDir()}
	if _, err := Open(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	for name, change := range map[string]func(*Options){
		"no directory": func(o *Options) { o.Dirs = nil },
		"no files":     func(o *Options) { o.Files = 0 },
		"no shape":     func(o *Options) { o.Shape = Shape{} },
		"no memory":    func(o *Options) { o.Memory = Memory{} },
	} {
		p := o
		change(&p)
		if _, err := Open(context.Background(), p); !errors.Is(err, ErrShape) && !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLongLog: a log that has grown is written anew, and nothing is lost by that.
func TestLongLog(t *testing.T) {
	fs, h, o := rig(t, 1, Shape{Layers: 1, BlockTokens: 1, KVHeads: 1, HeadDim: 1, ElementBytes: 1}, 4, 4)
	s := open(t, o)
	h.mustStore(t, s, ids(0, 1))
	for i := 0; s.head.generation < 3; i++ {
		if i > 20_000 {
			t.Fatalf("the log has %d bytes", s.Stats().LogBytes)
		}
		all := ids(10+i, 2)
		h.mustStore(t, s, all)
		for _, id := range all {
			s.Remove(id)
		}
	}
	h.mustStore(t, s, ids(5, 1))
	closeStore(t, s)
	if n := len(fs.Files()); n != 2 {
		t.Errorf("files: %v", fs.Files())
	}
	s = open(t, o)
	if got := h.check(t, s, []block.ID{ids(0, 1)[0], ids(5, 1)[0]}); got != 2 || s.Stats().Blocks != 2 {
		t.Errorf("%d blocks, %+v", got, s.Stats())
	}
}
