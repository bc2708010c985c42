package cascade

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// hooked is a cold tier of which a test changes some calls.
type hooked struct {
	tiers.Files
	sync func(ctx context.Context) error
	link func(block.ID, block.Name) error
	put  func() error
}

func (h *hooked) Sync(ctx context.Context) error {
	if h.sync != nil {
		if err := h.sync(ctx); err != nil {
			return err
		}
	}
	return h.Files.Sync(ctx)
}

func (h *hooked) Link(id block.ID, n block.Name) error {
	if h.link != nil {
		if err := h.link(id, n); err != nil {
			return err
		}
	}
	return h.Files.Link(id, n)
}

func (h *hooked) Put(ctx context.Context, items ...tiers.Item) error {
	if h.put != nil {
		if err := h.put(); err != nil {
			return err
		}
	}
	return h.Files.Put(ctx, items...)
}

// hook puts a hooked tier in the place of a rank's cold one.
func (r *jobRank) hook() *hooked {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	h := &hooked{Files: r.state.Cold.Files}
	r.state.Cold.Files = h
	return h
}

// told is what a rank tells another one that it entrusts with its names of a block.
func (r *jobRank) told(key string) directory.Statement {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.Mu.Names.Get("ns", key)
	st := directory.Statement{Name: n.Record(), Info: residency.BlockOf(n).Info}
	st.Name.Seq = n.Put()
	return st
}

func (r *jobRank) dirty() int {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	return r.state.Count.Stats.DirtyBlocks
}

// A rank that takes long to sync is none that does not answer, and no caller's deadline ends
// its write.
func TestEntrustingASlowRank(t *testing.T) {
	j := sharingJob(t, 3, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	var ended atomic.Int32
	j.ranks[0].hook().sync = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			ended.Add(1)
			return ctx.Err()
		case <-time.After(600 * time.Millisecond):
			return nil
		}
	}
	j.ranks[1].putKey(t, "b", p)
	j.drainAll(1)
	if n := j.ranks[1].node.Stats().Unanswered; n != 0 {
		t.Errorf("%d calls were not answered", n)
	}
	if n := ended.Load(); n != 0 {
		t.Errorf("%d writes of the keeper were ended by whoever asked it", n)
	}
	if n, _ := j.durable(0, 1); n != 1 {
		t.Errorf("%d copies", n)
	}
}
