package indexbench

import (
	"context"
	"errors"
	"os"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
)

// A small run of everything; what it measures it checks as well.
func TestIndex(t *testing.T) {
	dir, steps := t.TempDir(), 0
	res, err := Run(context.Background(), Options{
		Entries: 10 * chainBlocks, Rebuild: 2048, Samples: 1000, Dir: dir, Progress: func(done, total int) { steps = total - done },
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps != 0 {
		t.Errorf("%d steps to go", steps)
	}
	for name, l := range map[string]Latency{
		"get": res.PresentGet, "name": res.PresentName, "absent": res.AbsentProbe, "chain": res.ChainProbe, "put": res.Put,
		"batch": res.GetBatch.Batch, "singles": res.GetBatch.Singles, "names": res.GetBatch.Names,
	} {
		if l.Ops == 0 || l.P50 <= 0 || l.P99 < l.P50 {
			t.Errorf("%s: %+v", name, l)
		}
	}
	// Ten heads, and eight chains that leave the first of their group.
	if res.Entries != 10*chainBlocks || res.Keys != 30*chainBlocks-18 || res.Rebuild.Blocks != 2048 || res.Rebuild.Segments != 4 {
		t.Errorf("%+v", res)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

func TestIndexRefusesOptions(t *testing.T) {
	for _, o := range []Options{{Entries: 1}, {Entries: 5000, Rebuild: 6000}, {Samples: 1}, {Rebuild: -1}} {
		if _, err := Run(context.Background(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
