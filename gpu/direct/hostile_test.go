package direct

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"cascadekv/gpu/gio"
	"cascadekv/internal/block"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
	"cascadekv/tiers"
)

// scribble writes noise over all of a ring's own containers, as its client can by itself: with entries of its own, no event and nobody's leave.
// It writes past their ends, too.
func scribble(t *testing.T, r *Ring, bytes int64) {
	t.Helper()
	copy(r.server.Data(), noise.Bytes(99, int(bytes)))
	for _, c := range r.lot.Load().Containers() {
		for _, at := range []int64{0, bytes} {
			got, err := r.queue.GetIOCB(1, nil)
			must(t, err)
			got[0].Ctx[0] = gio.IOCTX{Length: uint32(bytes), File: uint32(c), Offset: uint64(at), Bytes: uint32(bytes)}
			got[0].Set(gio.Write, 1)
			must(t, r.queue.IssueIO([]uint32{got[0].ID}, 0))
			must(t, r.queue.WaitCQE(t.Context(), got[0].ID))
			must(t, r.queue.Release(got[0].ID))
		}
	}
}

// TestHostileWriter: a client that writes over all that it can harms the blocks that it has stored by this ring, which are misses, and no others:
// those that a ring stored before, and those of everybody else. So it is after a restart.
func TestHostileWriter(t *testing.T) {
	for name, o := range engines() {
		t.Run(name, func(t *testing.T) {
			d, disk := disks(t)
			var others []tiers.Item
			for i := range 8 {
				p := noise.Bytes(uint64(i), unit+100*i)
				others = append(others, tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)}, Data: p,
					Names: []block.Name{{Namespace: "ns", Key: fmt.Sprint("k", i), Seq: uint64(i + 1)}}})
			}
			must(t, d.Put(t.Context(), others[:4]...))
			first := writer(t, d, o)
			before := stored(t, first, 50, 3)
			r := writer(t, d, o)
			own := stored(t, r, 60, 3)
			must(t, d.Put(t.Context(), others[4:]...))
			scribble(t, r, 128<<10)
			check := func(what string) {
				t.Helper()
				for i, it := range append(others, before...) {
					if got, err := read(t, d, it.Info); err != nil || !bytes.Equal(got, it.Data) {
						t.Errorf("%s, block %d: %v, or other bytes", what, i, err)
					}
				}
				for i, it := range own {
					if _, err := read(t, d, it.Info); !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, tiers.ErrNotFound) {
						t.Errorf("%s, block %d that was written over: %v", what, i, err)
					}
				}
			}
			check("after it")
			end(t, r)
			check("after its end")
			end(t, first)
			last := writer(t, d, o)
			before = append(before, stored(t, last, 70, 3)...)
			end(t, last)
			must(t, d.Close())
			d = openDisks(t, disk)
			check("after a restart")
		})
	}
}

// stored is n blocks of a GPU file that a ring has stored.
func stored(t *testing.T, r *Ring, seed uint64, n int) (all []tiers.Item) {
	t.Helper()
	var from [][]region.Extent
	for i := range n {
		at := int64(i * unit)
		copy(r.server.Data()[at:], noise.Bytes(seed+uint64(i), unit))
		from = append(from, []region.Extent{{Offset: at, Length: unit}})
	}
	b := r.Batch(gio.Write, 1, 0)
	defer b.End()
	b.Store(from)
	must(t, b.Begin())
	must(t, b.Wait(t.Context()))
	written, err := b.Register(t.Context(), block.Bits128, alone)
	must(t, err)
	for i, w := range written {
		all = append(all, tiers.Item{Info: w.Info, Data: noise.Bytes(seed+uint64(i), unit)})
		must(t, w.Slot.Commit(w.Info, nil))
	}
	if len(all) != n {
		t.Fatalf("%d of %d blocks", len(all), n)
	}
	return all
}
