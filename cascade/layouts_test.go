package cascade

import (
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// TestLayoutsOutliveAProcess: what clients declared stays with the arena, and goes from there to a
// cold tier that has it not yet.
func TestLayoutsOutliveAProcess(t *testing.T) {
	r := newRig(t, 8<<20, false)
	layout := block.Layout{Bytes: 3000, KeyBytes: 1000}
	if err := r.Layouts().Set("ns", layout); err != nil {
		t.Fatal(err)
	}
	r.put(ns("a"), data(1, 3000))
	r.crash()
	if got := r.Layouts().Of("ns"); got != layout {
		t.Errorf("after a crash %v", got)
	}
	if err := r.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.shm = 16 << 20 // a new file
	dir := t.TempDir()
	cold, err := lustre.Open(lustre.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r.cold = cold
	r.open()
	if got := r.Layouts().Of("ns"); got != layout {
		t.Errorf("in an arena of another size %v", got)
	}
	if err := r.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cold, err = lustre.Open(lustre.Options{Dir: dir, Incarnation: 9}); err != nil {
		t.Fatal(err)
	}
	defer cold.Close()
	if err := cold.Recover(func(tiers.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, got := cold.Layout("ns"); got != layout {
		t.Errorf("in segments %v", got)
	}
}

// TestLayoutsAcrossJobs: the layout of a namespace comes to the rank that takes its names in, which
// keeps it over a restart that reads no footer, and to the rank's own next run.
func TestLayoutsAcrossJobs(t *testing.T) {
	c := newCampaign(t)
	layout := block.Layout{Bytes: 30_000, KeyBytes: 15_000, Tokens: 16, DType: "bf16"}
	r := c.session(1, 8<<20)
	r.put(ns("1"), data(1, 30_000))
	space := ns("1").Namespace
	if err := r.Layouts().Set(space, layout); err != nil {
		t.Fatal(err)
	}
	if got := r.Stats().Namespaces; len(got) != 1 || got[0].Layout == nil || *got[0].Layout != layout {
		t.Errorf("statistics %+v", got)
	}
	c.end(r)
	r = c.session(1, 8<<20)
	if got := r.Layouts().Of(space); got != layout {
		t.Errorf("the rank's next run has %v", got)
	}
	c.end(r)
	for start := range 2 {
		r := c.session(0, 8<<20)
		if start == 0 {
			if got := r.Layouts().Of(space); !got.IsZero() {
				t.Errorf("nobody has looked, and it is %v", got)
			}
			c.takeIn(r)
		}
		if got := r.Layouts().Of(space); got != layout {
			t.Errorf("start %d: another rank has %v", start, got)
		}
		c.end(r)
	}
}
