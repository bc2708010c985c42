package tiertest

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// merge has the tier merge what is left of many blocks: all of it stays, with
// its names, here and for the next incarnation, and takes less space.
func (c Config) merge(t *testing.T) {
	o := c.fresh(t, roomy)
	if o.Stats().Merged == nil {
		t.Skip("the tier's free space is room at once")
	}
	const size, batches, each = 100_000, 12, 20
	var kept []tiers.Item
	want := map[string]nameRecord{}
	for b := range batches {
		var items []tiers.Item
		for i := range each {
			n := name(fmt.Sprintf("%d.%d", b, i), uint64(1000*b+10*i+10))
			items = append(items, item(uint64(1000*b+i), size+int64(i), n))
		}
		put(t, o, items...)
		for i, it := range items {
			if i%4 != b%4 {
				if err := o.Evict(it.Info.ID); err != nil {
					t.Fatal(err)
				}
				continue
			}
			kept = append(kept, it)
			want[it.Names[0].Key] = nameRecord{id: it.Info.ID, name: it.Names[0]}
		}
	}
	o = c.reopened(t, o, roomy) // what has files of its own is whole by now
	for id := range o.blocks {
		if !isOf(kept, id) {
			if err := o.Evict(id); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := o.Usage()
	moved := map[block.ID]bool{}
	var did tiers.Merged
	for more := true; more; {
		m, err := o.Tier.(tiers.Files).Merge(t.Context(), 0, func(ids []block.ID) {
			did.Blocks += uint64(len(ids))
			for _, id := range ids {
				moved[id] = true
			}
		})
		if err != nil {
			t.Fatalf("Merge: %v", err)
		}
		more = m.Segments > 0
		did.Merges, did.Segments = did.Merges+m.Merges, did.Segments+m.Segments
		if did.Segments > 100 {
			t.Fatal("there is always more to merge")
		}
	}
	sum := *o.Stats().Merged
	if sum.Merges != did.Merges || sum.Segments != did.Segments || sum.Blocks != did.Blocks || sum.Freed() <= 0 {
		t.Errorf("told of %+v, all together %+v", did, sum)
	}
	for id := range moved {
		if !isOf(kept, id) {
			t.Errorf("block %v moved, which was evicted", id)
		}
	}
	if len(moved) == 0 {
		t.Error("nothing moved")
	}
	for end := time.Now().Add(10 * time.Second); o.Usage().Used > before.Used*2/3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v before, %+v after", before, o.Usage())
		}
	}
	for _, it := range kept {
		readBack(t, o, it)
	}
	o = c.reopened(t, o, roomy)
	o.wantBlocks(t, kept...)
	for key, w := range want {
		if got, ok := o.names[nameKey{w.name.Namespace, key}]; !ok || got.id != w.id || !sameName(got.name, w.name) {
			t.Errorf("name %q is %+v, want %+v", key, got, w)
		}
	}
}

func isOf(items []tiers.Item, id block.ID) bool {
	for _, it := range items {
		if it.Info.ID == id {
			return true
		}
	}
	return false
}
