package cascade

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cascadekv/lustre"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// A client chooses the cursor: one that looks like one of the catalogue must not end a
// process that has none.
func TestReviewScanCursorWithoutCatalogue(t *testing.T) {
	r := newRig(t, 4<<20, false)
	r.put(ns("a"), data(1, 5000))
	if next := r.Scan("ns", 1<<62, 10, func(string) bool { return true }); next != 0 {
		t.Errorf("cursor %d", next)
	}
}

// A scan whose time is up after each name sees all names.
func TestReviewScanInShortSteps(t *testing.T) {
	c, r := spilledChain(t, 200)
	seen := map[string]bool{}
	for cursor := uint64(0); ; {
		if cursor = r.Scan("ns", cursor, 10, func(k string) bool { seen[k] = true; return false }); cursor == 0 {
			break
		}
	}
	if len(seen) != 200 {
		t.Errorf("%d of 200 names are seen", len(seen))
	}
	c.end(r)
}

// A name that is there for the whole of a scan is seen, though it is read meanwhile.
func TestReviewScanSeesWhatIsRead(t *testing.T) {
	c, r := spilledChain(t, 200)
	seen := map[string]bool{}
	fn := func(k string) bool { seen[k] = true; return true }
	cursor := uint64(0)
	for cursor>>62 == 0 {
		cursor = r.Scan("ns", cursor, 10, fn)
	}
	r.want("k0", data(1000, spillBlock))
	for cursor != 0 {
		cursor = r.Scan("ns", cursor, 10, fn)
	}
	if !seen["k0"] {
		t.Errorf("k0 is not seen: %d of 200 names are", len(seen))
	}
	c.end(r)
}

// What has expired gives its space back.
func TestReviewExpiredFilesGo(t *testing.T) {
	c := newCampaign(t)
	r := c.small()
	for i := range 200 {
		e := ns(fmt.Sprint("k", i))
		e.Expires = c.now().Add(time.Minute)
		r.put(e, data(uint64(i), spillBlock))
	}
	if c.spill(r) == 0 {
		t.Fatal("nothing is spilled")
	}
	used := r.state.Cold.Files.Usage().Used
	c.later(time.Hour)
	r.Sweep()
	for range 5 {
		if _, err := r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.space.MergeAll(t.Context())
		time.Sleep(20 * time.Millisecond)
	}
	if now := r.state.Cold.Files.Usage().Used; now > used/2 {
		t.Errorf("an hour after all has expired the tier takes %d of %d bytes, %d files are spilled", now, used, len(r.state.Cold.Files.Spilled()))
	}
	c.end(r)
}

// fails is an indexer that does not take what has been written while it fails.
type fails struct {
	*catalogue.Catalogue
	on *bool
}

func (f fails) Wrote(ctx context.Context, p tiers.Part, number uint64, c segment.Contents) error {
	if *f.on {
		return errors.New("no time")
	}
	return f.Catalogue.Wrote(ctx, p, number, c)
}

// The name of a spilled block whose record the index did not take in time.
func TestReviewIndexMissesALink(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		t.Run(fmt.Sprint(overwrite), func(t *testing.T) {
			c, r := spilledChain(t, 200)
			on := false
			tier := r.state.Cold.Files.(*lustre.Tier)
			tier.SetIndexer(fails{tier.Catalogue().(*catalogue.Catalogue), &on})
			on = true
			key := "fresh"
			if overwrite {
				key = "k1"
			}
			r.put(ns(key), data(1000, spillBlock)) // lies below as k0
			if _, err := r.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			on = false
			r.want(key, data(1000, spillBlock))
			r.chain("other", 0, 60, 5000) // pushes it out
			c.spill(r)
			r.chain("another", 0, 60, 6000)
			c.spill(r)
			r.want(key, data(1000, spillBlock))
			c.end(r)
			r = c.small()
			r.want(key, data(1000, spillBlock))
			c.end(r)
		})
	}
}

func TestReviewDepthBelowASpilledParent(t *testing.T) {
	c, r := spilledChain(t, 200)
	e := ns("child")
	e.Parent = "k3"
	r.put(e, data(1, spillBlock))
	if info, _ := r.Stat(t.Context(), "ns", "child"); info.Depth != 4 {
		t.Errorf("depth %d", info.Depth)
	}
	c.end(r)
}
