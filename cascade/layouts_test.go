package cascade

import (
	"testing"

	"cascadekv/internal/block"
)

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
