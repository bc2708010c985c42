package direct

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/block"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
	"cascadekv/tiers"
)

const unit = 16 << 10 // bytes of a GPU file, of which each disk has a half

// disks are a tier of 64 GPU files on two disks.
func disks(t *testing.T) (*nvme.Tier, nvme.Options) {
	t.Helper()
	dir := t.TempDir()
	o := nvme.Options{Dirs: []string{filepath.Join(dir, "disk0"), filepath.Join(dir, "disk1")}, Bytes: 64 * unit, FileBytes: unit, Direct: true}
	return openDisks(t, o), o
}

func openDisks(t *testing.T, o nvme.Options) *nvme.Tier {
	t.Helper()
	d, err := nvme.Open(t.Context(), o)
	must(t, err)
	must(t, d.WaitGrown(t.Context()))
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writer is a ring of 1 MiB that writes to a lot of 8 GPU files.
func writer(t *testing.T, d *nvme.Tier, o Options) *Ring {
	t.Helper()
	o.Bytes = 1 << 20
	r, err := Over(t.Context(), d, true, o)
	must(t, err)
	if !r.Writes() {
		t.Fatal("it does not write")
	}
	t.Cleanup(func() { end(t, r) })
	return r
}

// end closes a ring; it may be closed already.
func end(t *testing.T, r *Ring) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = r.Close(ctx)
	<-r.Done()
}

func alone(n int, do func(i int)) {
	for i := range n {
		do(i)
	}
}

// read returns the bytes of a block that the disks have.
func read(t *testing.T, d *nvme.Tier, info block.Info) ([]byte, error) {
	t.Helper()
	p, err := d.Pin(info.ID)
	if err != nil {
		return nil, err
	}
	defer p.Release()
	got := make([]byte, info.Size)
	return got, p.ReadInto(t.Context(), got)
}

// engines are those to test with.
func engines() map[string]Options {
	return map[string]Options{"best": {}, "user": {Engine: gio.EngineUser}}
}

// TestStore: blocks of a client's memory, in pieces that are cut anywhere, are on the disks when they are registered, and after the disks are
// opened anew. What a ring has no room for, or can not write, it does not take.
func TestStore(t *testing.T) {
	for name, o := range engines() {
		t.Run(name, func(t *testing.T) {
			d, disk := disks(t)
			r := writer(t, d, o)
			copy(r.server.Data(), noise.Bytes(7, 1<<20))
			from := [][]region.Extent{
				{{Offset: 4096, Length: 4096}, {Offset: 65536, Length: 12288}}, // a GPU file
				{{Offset: 100, Length: 4096}},
				{{Offset: 131072, Length: 4096}, {Offset: 8192, Length: unit}}, // two
				{{Offset: 0, Length: 4000}},
				{{Offset: 262144, Length: 6 * unit}},
				{{Offset: 524288, Length: 4096}}, // one
			}
			b := r.Batch(gio.Write, 1, 1)
			has := b.Store(from)
			if want := []bool{true, false, true, false, false, false}; !equal(has, want) {
				t.Fatalf("it has %v, want %v", has, want)
			}
			must(t, b.Begin())
			before := bytes.Clone(r.server.Data())
			for _, e := range from[2] { // no byte counts before the word is raised
				copy(r.server.Data()[e.Offset:], noise.Bytes(uint64(e.Offset), int(e.Length)))
			}
			r.queue.Word(1).Store(1)
			must(t, b.Wait(t.Context()))
			if bytes.Equal(before, r.server.Data()) {
				t.Fatal("nothing was changed")
			}
			all, err := b.Register(t.Context(), block.Bits128, alone)
			must(t, err)
			want := map[block.ID][]byte{}
			for k, i := range []int{0, 2} {
				var p []byte
				for _, e := range from[i] {
					p = append(p, r.server.Data()[e.Offset:][:e.Length]...)
				}
				info := block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)}
				if all[k].Info != info {
					t.Errorf("block %d is %+v, want %+v", i, all[k].Info, info)
				}
				must(t, all[k].Slot.Commit(info, nil))
				want[info.ID] = p
				if got, err := read(t, d, info); err != nil || !bytes.Equal(got, p) {
					t.Errorf("block %d: %v, its bytes are right: %v", i, err, bytes.Equal(got, p))
				}
			}
			b.End()
			b.End()
			end(t, r)
			must(t, d.Close())
			d = openDisks(t, disk)
			must(t, d.Recover(func(e tiers.Entry) error {
				if got, err := read(t, d, e.Info); err != nil || !bytes.Equal(got, want[e.Info.ID]) {
					t.Errorf("block %v after a restart: %v", e.Info.ID, err)
				}
				delete(want, e.Info.ID)
				return nil
			}))
			if len(want) > 0 {
				t.Errorf("%d blocks are gone", len(want))
			}
		})
	}
}

func equal(a, b []bool) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// TestStoreChanged: a client that changes its memory after the write has a block that is a miss, and its id is of the bytes that its checksum is
// of: whoever puts these later has no other bytes.
func TestStoreChanged(t *testing.T) {
	d, _ := disks(t)
	r := writer(t, d, Options{})
	b := r.Batch(gio.Write, 1, 0)
	b.Store([][]region.Extent{{{Offset: 0, Length: unit}}, {{Offset: unit, Length: unit}}})
	must(t, b.Begin())
	must(t, b.Wait(t.Context()))
	changed := r.server.Data()[:unit]
	changed[5000] ^= 1
	all, err := b.Register(t.Context(), block.Bits128, alone)
	must(t, err)
	b.End()
	if all[0].Info != (block.Info{ID: block.Sum(block.Bits128, changed), Size: unit, CRC: block.CRC(changed)}) {
		t.Errorf("%+v is of other bytes than it says", all[0].Info)
	}
	must(t, all[0].Slot.Commit(all[0].Info, nil))
	must(t, all[1].Slot.Commit(all[1].Info, nil))
	if _, err := read(t, d, all[0].Info); !errors.Is(err, tiers.ErrCorrupt) {
		t.Errorf("a block that was changed: %v", err)
	}
	if _, err := read(t, d, all[1].Info); err != nil {
		t.Errorf("the other one: %v", err)
	}
}

// TestSumsOfOneCopy: while a client changes its memory all the time, checksums and id are of the same bytes.
func TestSumsOfOneCopy(t *testing.T) {
	d, _ := disks(t)
	r := writer(t, d, Options{Engine: gio.EngineUser})
	const size = 4 * unit
	b := r.Batch(gio.Write, 1, 0)
	if !b.Store([][]region.Extent{{{Offset: 0, Length: size}}})[0] {
		t.Fatal("no room")
	}
	defer b.End()
	word := func(i int) *uint64 { return (*uint64)(unsafe.Pointer(&r.server.Data()[8*i])) }
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // each state is all zeros but for one word
		defer close(ended)
		for i := 0; ; i = (i + 1) % (size / 8) {
			select {
			case <-stop:
				return
			default:
				atomic.StoreUint64(word(i), 1)
				atomic.StoreUint64(word(i), 0)
			}
		}
	}()
	// Bytes with that id are found again by their checksum: the states that a copy of a page at a time may have seen are few.
	seen := map[block.ID]uint32{}
	for range 300 {
		info, _ := b.sums(0, block.Bits128)
		if crc, ok := seen[info.ID]; ok && crc != info.CRC {
			t.Errorf("id %v has the checksums %08x and %08x", info.ID, crc, info.CRC)
		}
		seen[info.ID] = info.CRC
	}
	close(stop)
	<-ended
}

// TestStoreFails: a block of which a write fails, or comes to less, leaves nothing, and neither do batches that are given up.
func TestStoreFails(t *testing.T) {
	for name, f := range map[string]gio.Fault{"EIO": {Errno: unix.EIO}, "short": {Short: 512}} {
		t.Run(name, func(t *testing.T) {
			d, _ := disks(t)
			r := writer(t, d, Options{Fault: func(io gio.IO) gio.Fault {
				if io.Write && io.Index == 1 { // of the first block
					return f
				}
				return gio.Fault{}
			}})
			copy(r.server.Data(), noise.Bytes(7, 1<<20))
			used := d.Usage().Used
			var some *gio.IOError
			for range 3 {
				b := r.Batch(gio.Write, 1, 0)
				if has := b.Store([][]region.Extent{{{Offset: 0, Length: 2 * unit}}, {{Offset: 65536, Length: unit}}}); !equal(has, []bool{true, true}) {
					t.Fatalf("it has %v", has)
				}
				must(t, b.Begin())
				if err := b.Wait(t.Context()); !errors.As(err, &some) {
					t.Fatal(err)
				}
				all, err := b.Register(t.Context(), block.Bits128, alone)
				if err != nil || all[0].Slot != nil || all[1].Slot == nil {
					t.Fatalf("%+v, %v", all, err)
				}
				all[1].Slot.Abort()
				b.End()
				must(t, d.Sync(t.Context()))
			}
			b := r.Batch(gio.Write, 2, 1)
			if has := b.Store([][]region.Extent{{{Offset: 0, Length: 4 * unit}}}); !has[0] {
				t.Fatal("there is less room than before")
			}
			must(t, b.Begin())
			if r.Came(2, 1) {
				t.Error("the event has come by itself")
			}
			b.Cancel()
			if err := b.Wait(t.Context()); !errors.Is(err, gio.ErrCancelled) {
				t.Errorf("one that was given up: %v", err)
			}
			b.End()
			if u := d.Usage(); u.Blocks != 0 || u.Used != used {
				t.Errorf("%+v, %d bytes were used before", u, used)
			}
			end(t, r)
		})
	}
}

// TestStoreStalls: a write that does not end keeps its room, the lot and the disks, whoever closes them.
func TestStoreStalls(t *testing.T) {
	d, _ := disks(t)
	stall := make(chan struct{})
	r := writer(t, d, Options{Fault: func(gio.IO) gio.Fault { return gio.Fault{Until: stall} }})
	b := r.Batch(gio.Write, 1, 0)
	b.Store([][]region.Extent{{{Offset: 0, Length: unit}}})
	must(t, b.Begin())
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := b.Wait(soon); !errors.Is(err, gio.ErrTimeout) {
		t.Fatal(err)
	}
	if err := r.Close(soon); !errors.Is(err, gio.ErrBusy) {
		t.Errorf("the end of the ring: %v", err)
	}
	b.End()              // who waits for it learns that the ring is gone
	other := d.TakeLot() // lots are a quarter of the disks at most: two
	if other == nil || d.TakeLot() != nil {
		t.Error("the room of a write under way is given back")
	}
	close(stall)
	<-r.Done()
	must(t, other.Close())
	if used := d.Usage().Used; used != 0 {
		t.Errorf("%d bytes are used", used)
	}
}

// TestReadsOnly: a ring without a lot takes no batch of writes, and can not write to a file: what its client puts into it all the same fails.
func TestReadsOnly(t *testing.T) {
	for name, o := range engines() {
		t.Run(name, func(t *testing.T) {
			d, _ := disks(t)
			o.Bytes = 1 << 20
			r, err := Over(t.Context(), d, false, o)
			must(t, err)
			t.Cleanup(func() { end(t, r) })
			if r.Writes() || r.Batch(gio.Write, 1, 0) != nil {
				t.Error("a ring that only reads writes")
			}
			wantNoWrite(t, r, 0)
		})
	}
}

// wantNoWrite fails unless a write to a file of the ring, as its client would make it, fails.
func wantNoWrite(t *testing.T, r *Ring, file int32) {
	t.Helper()
	got, err := r.queue.GetIOCB(1, nil)
	must(t, err)
	got[0].Ctx[0] = gio.IOCTX{Length: 4096, File: uint32(file), Offset: 4096, Bytes: 4096}
	got[0].Set(gio.Write, 1)
	must(t, r.queue.IssueIO([]uint32{got[0].ID}, 0))
	var failed *gio.IOError
	if err := r.queue.WaitCQE(t.Context(), got[0].ID); !errors.As(err, &failed) {
		t.Errorf("a write to file %d: %v", file, err)
	}
	must(t, r.queue.Release(got[0].ID))
}

// TestOtherFiles: a ring that writes can write to its lot, and to no other file.
func TestOtherFiles(t *testing.T) {
	for name, o := range engines() {
		t.Run(name, func(t *testing.T) {
			d, _ := disks(t)
			r := writer(t, d, o)
			others := d.TakeLot()
			defer others.Close()
			own := map[int]bool{}
			for _, c := range r.lot.Load().Containers() {
				own[c] = true
			}
			for c := range r.has {
				if !own[c] {
					wantNoWrite(t, r, int32(c))
				}
			}
			if len(own) != 2 {
				t.Errorf("it has %v of %d containers", own, len(r.has))
			}
		})
	}
}
