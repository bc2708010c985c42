package lustre

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// pair opens the tiers of two ranks over one directory.
func pair(t *testing.T, owner, reader Options) (*Tier, *Tier) {
	t.Helper()
	open := func(o Options) *Tier {
		tr, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		return tr
	}
	reader.Dir, reader.Rank = owner.Dir, owner.Rank+1
	return open(owner), open(reader)
}

func putOne(t *testing.T, tr *Tier, seed byte, size int) (tiers.Item, tiers.Segment) {
	t.Helper()
	data := bytes.Repeat([]byte{seed}, size)
	it := tiers.Item{Data: data, Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(size), CRC: block.CRC(data)}}
	if err := tr.Put(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	at, err := tr.Segment(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	return it, at
}

// TestReadSegmentErrors: each way to fail matches the tier's error for it.
func TestReadSegmentErrors(t *testing.T) {
	dir := t.TempDir()
	a, b := pair(t, Options{Dir: dir, SegmentBlocks: 1}, Options{})
	it, at := putOne(t, a, 1, 9000)
	dst := make([]byte, 9000)
	if err := b.ReadSegment(t.Context(), at, it.Info, dst); err != nil || !bytes.Equal(dst, it.Data) {
		t.Fatalf("right bytes: %v, error %v", bytes.Equal(dst, it.Data), err)
	}
	if _, err := b.Segment(it.Info.ID); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("Segment of a block that only another rank knows: %v", err)
	}
	provisional := it.Info
	provisional.ID = block.Provisional(7)
	if err := b.ReadSegment(t.Context(), at, provisional, dst); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("a provisional id: %v", err)
	}
	out := at
	out.Path = filepath.Join("..", filepath.Base(dir), at.Path)
	if err := b.ReadSegment(t.Context(), out, it.Info, dst); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("a path that leads out and in again: %v", err)
	}
	bad, badAt := putOne(t, a, 2, 9000)
	corrupt(t, dir, a, bad.Info.ID)
	if err := b.ReadSegment(t.Context(), badAt, bad.Info, dst); !errors.Is(err, tiers.ErrCorrupt) {
		t.Errorf("a flipped byte: %v", err)
	}
	gone, goneAt := putOne(t, a, 3, 9000)
	putOne(t, a, 4, 9000) // the segment of the one before is sealed
	if err := a.Evict(gone.Info.ID); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, goneAt.Path)
	for unlinked := false; !unlinked; time.Sleep(time.Millisecond) {
		_, err := os.Stat(path)
		unlinked = errors.Is(err, os.ErrNotExist)
	}
	if err := b.ReadSegment(t.Context(), goneAt, gone.Info, dst); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("an unlinked segment: %v", err)
	}
	b.Close()
	if err := b.ReadSegment(t.Context(), at, it.Info, dst); !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("a closed tier: %v", err)
	}
}

// TestReadSegmentBusy: the owner of dst learns through the tier's error when
// the kernel has let go of it.
func TestReadSegmentBusy(t *testing.T) {
	fs := vfstest.NewFault(vfs.OS{})
	a, b := pair(t, Options{Dir: t.TempDir()}, Options{FS: fs})
	it, at := putOne(t, a, 1, 9000)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: server})
	ctx := fs.UntilHung(t.Context(), 1)
	err := b.ReadSegment(ctx, at, it.Info, make([]byte, 9000))
	var lingering interface{ Done() <-chan struct{} }
	if !errors.As(err, &lingering) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	close(server)
	<-lingering.Done()
}

// TestSegmentsOfADeadRank: what a rank stored is read by its places after it
// died, and what another rank recovered has places too.
func TestSegmentsOfADeadRank(t *testing.T) {
	dir := t.TempDir()
	a, b := pair(t, Options{Dir: dir, Process: lease.Killed()}, Options{})
	var items []tiers.Item
	var places []tiers.Segment
	for i := range 5 {
		it, at := putOne(t, a, byte(i+1), 300*(i*i+1))
		items, places = append(items, it), append(places, at)
	}
	c, _ := pair(t, Options{Dir: dir, Rank: 9}, Options{})
	if err := c.Recover(func(tiers.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for i, it := range items {
		at, err := c.Segment(it.Info.ID)
		if err != nil || at != places[i] {
			t.Errorf("recovered at %+v, %v; written at %+v", at, err, places[i])
		}
		dst := make([]byte, it.Info.Size)
		if err := b.ReadSegment(t.Context(), at, it.Info, dst); err != nil || !bytes.Equal(dst, it.Data) {
			t.Error(fmt.Errorf("block %d: %w", i, err))
		}
	}
}
