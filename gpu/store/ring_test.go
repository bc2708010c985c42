package store

import (
	"context"
	"errors"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// counting is a Ring that counts batches.
type counting struct {
	Ring
	reads, writes [][]Transfer
}

func (c *counting) Read(ctx context.Context, batch []Transfer) {
	c.reads = append(c.reads, batch)
	c.Ring.Read(ctx, batch)
}

func (c *counting) Write(ctx context.Context, batch []Transfer) {
	c.writes = append(c.writes, batch)
	c.Ring.Write(ctx, batch)
}

// TestOneBatchForALayer: a put and a get of any number of blocks cost as many calls as the model
// has layers, and each takes all disks.
func TestOneBatchForALayer(t *testing.T) {
	fs, dirs := disks(t, 3)
	h := newHost(small, 12)
	o := h.options(dirs, 12)
	ring := &counting{}
	o.Ring = func(files []vfs.File) Ring {
		ring.Ring = NewHostRing(files, h.bytes, 2)
		return ring
	}
	o.FS, o.unlocked = fs, true
	s := open(t, o)
	all := ids(0, 12)
	h.mustStore(t, s, all)
	g, err := s.Retrieve(all)
	if err != nil {
		t.Fatal(err)
	}
	for l := range small.Layers {
		if errs := g.RetrieveLayer(context.Background(), l, upTo(12)); errs != nil {
			t.Fatal(errs)
		}
	}
	<-g.Close()
	if len(ring.reads) != small.Layers || len(ring.writes) != small.Layers {
		t.Fatalf("%d reads, %d writes", len(ring.reads), len(ring.writes))
	}
	for l, batch := range ring.reads {
		disks := make([]int, 3)
		for _, x := range batch {
			disks[x.Container%3]++
		}
		if len(batch) != 24 || disks[0] != 8 || disks[1] != 8 || disks[2] != 8 {
			t.Errorf("layer %d: %d transfers, by disk %v", l, len(batch), disks)
		}
	}
}

// TestHangingCommit: a Commit ends with its context; whoever wants the log meanwhile
// too; its blocks are visible once the disk has answered.
func TestHangingCommit(t *testing.T) {
	disk, h, o := rig(t, 2, small, 4, 8)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	s := open(t, o)
	ctx := context.Background()
	put := func(from int) *Put {
		p, err := s.Reserve(ctx, ids(from, 2))
		if err != nil {
			t.Fatal(err)
		}
		for i, id := range ids(from, 2) {
			h.put(id, i)
		}
		for l := range small.Layers {
			if err := p.StoreLayer(ctx, l, upTo(2)); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	first, second := put(0), put(10)
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Block: hang})
	if n, _, err := first.Commit(fs.UntilHung(ctx, 1)); n != 0 || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) || errors.Is(err, errNotBegun) {
		t.Errorf("%d blocks, %v", n, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if n, _, err := second.Commit(ended); n != 0 || !errors.Is(err, errNotBegun) {
		t.Errorf("behind it: %d blocks, %v", n, err)
	}
	if s.Has(ids(0, 1)) != 0 || s.Stats().Removed != 2 {
		t.Errorf("%+v", s.Stats())
	}
	fs.Clear()
	close(hang)
	h.mustStore(t, s, ids(20, 4)) // waits for the log
	if got := h.check(t, s, append(append(ids(0, 2), ids(10, 2)...), ids(20, 4)...)); got != 6 {
		t.Errorf("%d blocks", got)
	}
}
