package lustre

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// TestReadBatch: outcomes come in order, with the tier's errors.
func TestReadBatch(t *testing.T) {
	dir := t.TempDir()
	a, _ := pair(t, Options{Dir: dir}, Options{})
	var items []tiers.Item
	var reads []tiers.Read
	for i := range 6 {
		it, _ := putOne(t, a, byte(i+1), 9000)
		p, err := a.Pin(it.Info.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		items = append(items, it)
		reads = append(reads, tiers.Read{Pin: p, Dst: make([]byte, 9000)})
	}
	corrupt(t, dir, a, items[2].Info.ID)
	reads[4].Dst = reads[4].Dst[1:]
	for i, err := range a.ReadBatch(t.Context(), reads) {
		switch {
		case i == 2:
			if !errors.Is(err, tiers.ErrCorrupt) {
				t.Errorf("a flipped byte: %v", err)
			}
		case i == 4:
			if err == nil {
				t.Error("room of another size was taken")
			}
		case err != nil || !bytes.Equal(reads[i].Dst, items[i].Data):
			t.Errorf("block %d: %v", i, err)
		}
	}
	other, err := host.Open(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Put(t.Context(), items[0]); err != nil {
		t.Fatal(err)
	}
	stranger, err := other.Pin(items[0].Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Release()
	if err := a.ReadBatch(t.Context(), []tiers.Read{{Pin: stranger, Dst: make([]byte, 9000)}})[0]; err == nil {
		t.Error("a pin of another tier was taken")
	}
}

// TestReadBatchBusy: the owner of dst learns when the kernel has let go of it.
func TestReadBatchBusy(t *testing.T) {
	fs := vfstest.NewFault(vfs.OS{})
	a, _ := pair(t, Options{Dir: t.TempDir(), FS: fs}, Options{})
	it, _ := putOne(t, a, 1, 9000)
	p, err := a.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: server})
	ctx := fs.UntilHung(t.Context(), 1)
	err = a.ReadBatch(ctx, []tiers.Read{{Pin: p, Dst: make([]byte, 9000)}})[0]
	var lingering interface{ Done() <-chan struct{} }
	if !errors.As(err, &lingering) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	close(server)
	<-lingering.Done()
}
