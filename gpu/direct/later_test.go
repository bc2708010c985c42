package direct

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/block"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// full puts blocks until the disks take no more.
func full(t *testing.T, d *nvme.Tier) (all []tiers.Item) {
	t.Helper()
	for i := 0; d.Usage().Used < d.Usage().Capacity; i++ {
		p := noise.Bytes(uint64(1000+i), unit)
		it := tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: unit, CRC: block.CRC(p)}, Data: p}
		must(t, d.Put(t.Context(), it))
		all = append(all, it)
	}
	return all
}

// readerThatIsToWrite is a ring over disks that have no lot for it.
func readerThatIsToWrite(t *testing.T, d *nvme.Tier, o Options) *Ring {
	t.Helper()
	o.Bytes = 1 << 20
	r, err := Over(t.Context(), d, true, o)
	must(t, err)
	t.Cleanup(func() { end(t, r) })
	if r.Writes() {
		t.Fatal("it has a lot")
	}
	return r
}

// nextLook sets when the ring looks for a lot again, and returns when it was to before, and whether it looks now.
func (r *Ring) nextLook(next time.Time) (before time.Time, looks bool) {
	r.seek.Lock()
	defer r.seek.Unlock()
	before, r.seek.next = r.seek.next, next
	return before, r.seek.over
}

// awaitLot asks for batches of writes until the ring has a lot.
func awaitLot(t *testing.T, r *Ring) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !r.Writes(); time.Sleep(time.Millisecond) {
		if b := r.Batch(gio.Write, 1, 0); b != nil {
			b.End()
		}
		if time.Now().After(end) {
			t.Fatal("it has no lot")
		}
	}
}

// wantReads fails unless the ring reads a block that the disks have.
func wantReads(t *testing.T, r *Ring, d *nvme.Tier, it tiers.Item) {
	t.Helper()
	p, err := d.Pin(it.Info.ID)
	must(t, err)
	defer p.Release()
	clear(r.server.Data()[:unit])
	b := r.Batch(gio.Read, 1, 0)
	defer b.End()
	if !b.Add(p, []region.Extent{{Offset: 0, Length: unit}}) {
		t.Fatal("the ring can not read it")
	}
	must(t, b.Begin())
	must(t, b.Wait(t.Context()))
	if !b.Good(0) || !bytes.Equal(r.server.Data()[:unit], it.Data) {
		t.Error("other bytes")
	}
}

// TestLotLater: a ring that is made while the disks are full has a lot once they have room for one, which it asks for as long as it has none, and not
// more often than it is to.
func TestLotLater(t *testing.T) {
	for name, o := range engines() {
		t.Run(name, func(t *testing.T) {
			d, disk := disks(t)
			old := full(t, d)
			r := readerThatIsToWrite(t, d, o)
			if r.Batch(gio.Write, 1, 0) != nil {
				t.Error("a batch of writes without room for any")
			}
			later := time.Now().Add(time.Hour)
			if first, _ := r.nextLook(later); first.IsZero() {
				t.Error("it does not look for a lot")
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if _, looks := r.nextLook(later); !looks {
					break
				}
				if time.Now().After(end) {
					t.Fatal("it looks for ever")
				}
			}
			for _, it := range old[8:] {
				must(t, d.Evict(it.Info.ID))
			}
			must(t, d.Sync(t.Context()))
			for range 10 {
				r.Batch(gio.Write, 1, 0)
				if _, looks := r.nextLook(later); looks || r.Writes() {
					t.Fatal("it looks for a lot before it is to")
				}
			}
			wantReads(t, r, d, old[3])
			r.nextLook(time.Time{})
			awaitLot(t, r)
			items := stored(t, r, 50, 8)
			wantReads(t, r, d, items[5])
			wantReads(t, r, d, old[3])
			scribble(t, r, 64<<10)
			for c := range r.has {
				if c != r.lot.Load().Containers()[0] && c != r.lot.Load().Containers()[1] {
					wantNoWrite(t, r, int32(c))
				}
			}
			end(t, r)
			if used := d.Usage().Used; used != 16*unit {
				t.Errorf("%d bytes are used", used)
			}
			must(t, d.Close())
			d = openDisks(t, disk)
			for _, it := range old[:8] {
				if got, err := read(t, d, it.Info); err != nil || !bytes.Equal(got, it.Data) {
					t.Errorf("a block of others after a restart: %v", err)
				}
			}
		})
	}
}

// TestLotOfFilesThatComeLater: a ring that is made while the first files are written has a lot of those that come later, and reads what it has written there.
func TestLotOfFilesThatComeLater(t *testing.T) {
	dir := t.TempDir()
	fs, gate := vfstest.NewFault(vfs.OS{}), make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpCreate, Path: string(filepath.Separator) + "pool-000004", Block: gate})
	d, err := nvme.Open(t.Context(), nvme.Options{Dirs: []string{filepath.Join(dir, "disk0"), filepath.Join(dir, "disk1")}, Bytes: 64 * unit, FileBytes: unit, Direct: true, FS: fs})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	// The second group is there.
	for end := time.Now().Add(time.Minute); d.Usage().Capacity < 16*unit; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", d.Usage())
		}
	}
	full(t, d)
	r := readerThatIsToWrite(t, d, Options{})
	close(gate)
	must(t, d.WaitGrown(t.Context()))
	awaitLot(t, r)
	for _, c := range r.lot.Load().Containers() {
		if c < 4 {
			t.Errorf("container %d is of the lot", c)
		}
	}
	wantReads(t, r, d, stored(t, r, 50, 8)[7])
	end(t, r)
}

// TestLotTooLate: a ring that ends while it looks for a lot, or whose lot's files do not open, leaves all room to others.
func TestLotTooLate(t *testing.T) {
	d, disk := disks(t)
	for range 20 {
		old := full(t, d)
		r := readerThatIsToWrite(t, d, Options{Engine: gio.EngineUser})
		for _, it := range old {
			must(t, d.Evict(it.Info.ID))
		}
		must(t, d.Sync(t.Context()))
		r.Batch(gio.Write, 1, 0) // looks
		end(t, r)
		for end := time.Now().Add(time.Minute); d.Usage().Used != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", d.Usage())
			}
		}
	}
	names, err := filepath.Glob(filepath.Join(disk.Dirs[1], "pool-*"))
	must(t, err)
	for _, name := range names {
		must(t, os.Rename(name, strings.Replace(name, "pool-", "gone-", 1)))
	}
	r, err := Open([]*os.File{openOne(t, disk.Dirs[0])}, Options{Bytes: 1 << 20})
	must(t, err)
	defer end(t, r)
	r.disks, r.write = d, true
	r.takeLot()
	if r.Writes() || r.seek.over || d.Usage().Used != 0 {
		t.Errorf("it writes: %v, it looks no more: %v, %+v", r.Writes(), r.seek.over, d.Usage())
	}
}

// openOne opens one container of a directory.
func openOne(t *testing.T, dir string) *os.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "pool-*"))
	must(t, err)
	f, err := os.Open(names[0])
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
