package cascade

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
)

// removing is a file system that tells of a file before it removes it.
type removing struct {
	vfs.FS
	before atomic.Pointer[func(name string)]
}

func (f *removing) Remove(name string) error {
	if fn := f.before.Load(); fn != nil && strings.HasSuffix(name, ".bin") {
		(*fn)(filepath.Base(name))
	}
	return f.FS.Remove(name)
}

// TestWithdrawnBeforeRemoval: a block is evicted that has another name, recorded in a file that stays. That the name is
// withdrawn is durable before the block's file is removed: a rank that is killed then would have it for good.
func TestWithdrawnBeforeRemoval(t *testing.T) {
	c := newCampaign(t)
	fs := &removing{FS: vfs.OS{}}
	c.fs = fs
	r := c.small()
	r.put(ns("first"), data(1, 1<<20-1<<16))
	r.drained()
	r.put(ns("alias"), data(1, 1<<20-1<<16))
	r.chain("k", 0, 60, 1000)
	c.spill(r)
	r.drained()
	tier := r.state.Cold.Files.(*lustre.Tier)
	withdrawn := func() (is bool) {
		parts, err := tier.Parts(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, p := range parts {
			files, err := tier.Store.Files(context.Background(), p)
			if err != nil {
				t.Error(err)
			}
			for _, n := range files.Numbers {
				has, err := tier.Contents(context.Background(), p, n, -1)
				if err != nil {
					continue
				}
				for _, rec := range has.Names {
					is = is || rec.Dropped && rec.Name.Key == "alias"
				}
			}
		}
		return is
	}
	if withdrawn() {
		t.Fatal("the alias is withdrawn already")
	}
	var removed, late atomic.Bool
	before := func(name string) {
		late.Store(late.Load() || !withdrawn())
		removed.Store(true)
	}
	fs.before.Store(&before)
	r.evictBelow("first")
	eventually(t, "the block's file is gone", removed.Load)
	if late.Load() {
		t.Error("the block's file goes before its other name is withdrawn")
	}
	fs.before.Store(nil)
	c.end(r)
}

// evictBelow has a block leave the cold tier, as one does for want of room.
func (r *rig) evictBelow(key string) {
	r.t.Helper()
	for _, f := range r.space.LookSpilled() {
		r.space.Reload(r.t.Context(), f, 0)
	}
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.Mu.Names.Get("ns", key)
	if n == nil || n.Block() == nil {
		r.t.Fatal("no block of", key)
	}
	b := residency.BlockOf(n)
	if !b.Cold || b.InAny() {
		r.t.Fatalf("in the cold tier: %v, in memory: %v", b.Cold, b.InAny())
	}
	if err := r.state.Cold.Files.Evict(b.Info.ID); err != nil {
		r.t.Fatal(err)
	}
	r.state.Cold.LeaveLocked(b, true)
	r.state.VanishLocked(b)
}
