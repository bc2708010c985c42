package cascade

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// TestNamedByAnotherPart: rank 0 inherits a part, and merges a block of it to a file of its own whose only name another
// part has. Its next session begins without an index: the block stays, and is found by the first round. Once
// that name is deleted, another such session gives the block up.
func TestNamedByAnotherPart(t *testing.T) {
	c := newCampaign(t)
	named := data(1007, 30_000)
	left := c.session(1, 8<<20)
	left.chain("left.", 0, 20, 1000)
	c.end(left)
	parts, err := c.parts()
	if err != nil || len(parts) != 1 {
		t.Fatal(parts, err)
	}
	left = c.session(1, 8<<20)
	left.put(ns("alias"), named)
	c.end(left)

	r := c.session(0, 8<<20)
	c.takeIn(r)
	for i := range 20 {
		if !r.Delete(t.Context(), "ns", fmt.Sprint("left.", i)) {
			t.Fatal("nothing to delete")
		}
	}
	r.drained()
	if _, ok, err := r.space.AdoptOrphan(t.Context(), parts[0]); !ok || err != nil {
		t.Fatal(ok, err)
	}
	upkeep(r)
	first := filepath.Join(c.dir, filepath.Dir(segment.Path(parts[0], 0)))
	eventually(t, "the files of the part are gone", func() bool {
		files, _ := filepath.Glob(filepath.Join(first, "*.bin"))
		return len(files) == 0
	})
	begin := func(stands int) { // for so many blocks names in other parts do
		t.Helper()
		c.end(r)
		if err := os.RemoveAll(c.local); err != nil {
			t.Fatal(err)
		}
		r = c.session(0, 8<<20)
		upkeep(r)
		if r.state.Cold.Wanted() == nil {
			t.Error("what has no name is not wanted")
		}
		c.takeIn(r)
		if left := r.state.Cold.Wanted(); len(left) != stands {
			t.Errorf("%v are wanted, want %d", left, stands)
		}
	}
	begin(1)
	r.want("alias", named)
	if !r.Delete(t.Context(), "ns", "alias") {
		t.Fatal("the alias is not there to be deleted")
	}
	r.drained()
	begin(0)
	if r.Probe(t.Context(), "ns", []string{"alias"}).Hits != 0 {
		t.Error("the alias is back")
	}
	upkeep(r)
	eventually(t, "no file of rank 0 has the block", func() bool {
		files, _ := filepath.Glob(filepath.Join(c.dir, "rank000-*", "*.bin"))
		return !slices.ContainsFunc(files, func(path string) bool {
			all, _ := os.ReadFile(path)
			return bytes.Contains(all, named)
		})
	})
	c.end(r)
}

// parts lists those of rank 1.
func (c *campaign) parts() (parts []tiers.Part, err error) {
	dirs, err := filepath.Glob(filepath.Join(c.dir, "rank001-*"))
	for _, dir := range dirs {
		var p tiers.Part
		if _, err := fmt.Sscanf(filepath.Base(dir), "rank%d-%x", &p.Rank, &p.Incarnation); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, err
}
