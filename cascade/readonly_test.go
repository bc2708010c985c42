package cascade

import (
	"context"
	"fmt"
	"testing"

	"cascadekv/cascade/residency"
)

// A read never costs the only copy of a block: while the cold tier takes nothing,
// what lies there is read and not kept, unless there is a place for it.
func TestReadsCostNoOnlyCopy(t *testing.T) {
	const blocks, size = 100, 200_000
	reads := map[string]func(r *rig, key string) *View{
		"Get": func(r *rig, key string) *View {
			v, _ := r.Get(t.Context(), "ns", key)
			return v
		},
		"GetBatch": func(r *rig, key string) *View {
			views, _ := r.GetBatch(t.Context(), "ns", []string{key})
			return views[0]
		},
		"Share": func(r *rig, key string) *View {
			if v, err := r.Get(t.Context(), "ns", key); err == nil {
				if v, err = r.Share(t.Context(), v); err == nil {
					return v
				}
			}
			return nil
		},
		"GetResident": func(r *rig, key string) *View {
			views, _ := r.GetBatch(t.Context(), "ns", []string{key}, Resident)
			return views[0]
		},
	}
	rigs := map[string]func(t *testing.T, change func(*Options)) *rig{
		"one tier":  func(t *testing.T, change func(*Options)) *rig { return newRig(t, 8<<20, false, change) },
		"two tiers": func(t *testing.T, change func(*Options)) *rig { return hbmRig(t, false, change) },
	}
	for tiers, open := range rigs {
		for name, read := range reads {
			t.Run(tiers+"/"+name, func(t *testing.T) {
				cold := newRefusing(t)
				r := open(t, func(o *Options) { o.Cold = cold })
				put := func(from, to int) {
					for i := from; i < to; i++ {
						r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
					}
				}
				put(0, blocks/2)
				if _, err := r.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				cold.full.Store(true)
				put(blocks/2, blocks+40) // all memory is full of only copies
				var there []int
				for i := range blocks + 40 {
					if r.Contains(t.Context(), "ns", fmt.Sprint(i)) {
						there = append(there, i)
					}
				}
				lost, below := r.Stats().Lost, 0
				for range 2 {
					for _, i := range there {
						v := read(r, fmt.Sprint(i))
						if v == nil {
							continue // there may be no room to show it
						}
						if string(v.Bytes()) != string(data(uint64(i), size)) {
							t.Errorf("block %d: wrong bytes", i)
						}
						if v.Tier() == "host" {
							below++
						}
						v.Release()
					}
					r.advance(2 * residency.ColdRetry) // the cold tier is tried again
				}
				if (name == "Get" || name == "GetBatch") && below == 0 {
					t.Error("nothing was read from the cold tier")
				}
				if n := r.Stats().Lost - lost; n > 0 {
					t.Errorf("%d only copies were lost by reading", n)
				}
				for _, i := range there {
					r.want(fmt.Sprint(i), data(uint64(i), size))
				}
				checkInvariants(t, r.Store)
				// Once the tier takes blocks again, reads are kept.
				cold.full.Store(false)
				r.advance(2 * residency.ColdRetry)
				eventually(t, "a block that is read is kept", func() bool {
					r.want("0", data(0, size))
					info, ok := r.Stat(context.Background(), "ns", "0")
					return ok && info.Tiers[0] != "host"
				})
			})
		}
	}
}

// A rank without a cold tier keeps what it reads from others, as ever: there every
// block is an only copy, and the least worth keeping gives way.
func TestReadsMakeRoomWithoutAColdTier(t *testing.T) {
	r := hbmRig(t, false)
	for i := range 100 {
		e := ns(fmt.Sprint(i))
		e.Prefix = true
		r.put(e, data(uint64(i), 400_000))
	}
	promoted := r.Stats().Tiers[0].Promoted
	for i := range 100 {
		if v, err := r.Get(t.Context(), "ns", fmt.Sprint(i)); err == nil {
			v.Release()
		}
	}
	if r.Stats().Tiers[0].Promoted == promoted {
		t.Error("no hit of shm was promoted")
	}
}
