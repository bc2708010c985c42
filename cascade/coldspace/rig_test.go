package coldspace

import (
	"context"
	"fmt"
	"testing"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/writeback"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

const size = 1000 // of the blocks of these tests

// files is a cold tier that merges, is emptied and inherits as a test wants.
type files struct {
	*parttest.Files
	merge    func() (tiers.Merged, []block.ID, error)
	merged   tiers.Merged // by all merges
	sparsest [][]block.ID
	parts    map[tiers.Part][]tiers.Entry // that may be inherited
	asked    []tiers.Part
	failing  error // of AdoptOrphan
	beside   int64 // what live runs of other jobs take
	spilling error // of Spill and Reload
}

func (f *files) Spill(context.Context, func([]block.ID) bool) (bool, error) { return false, f.spilling }

func (f *files) Reload(context.Context, tiers.SpilledFile, func(tiers.Entry) error) error {
	return f.spilling
}

func (f *files) Merge(_ context.Context, _ int64, moved func([]block.ID)) (tiers.Merged, error) {
	if f.merge == nil {
		return tiers.Merged{}, nil
	}
	did, ids, err := f.merge()
	moved(ids)
	f.merged.Add(did)
	return did, err
}

func (f *files) Stats() tiers.Stats {
	st, merged := f.Files.Stats(), f.merged
	st.Merged = &merged
	return st
}

func (f *files) Sparsest(int) [][]block.ID { return f.sparsest }

func (f *files) AdoptOrphan(_ context.Context, p tiers.Part, fn func(tiers.Entry) error) (bool, error) {
	f.asked = append(f.asked, p)
	entries, ok := f.parts[p]
	for _, e := range entries {
		if err := fn(e); err != nil {
			return false, err
		}
	}
	return ok, f.failing
}

func (f *files) OthersUsage() (int64, int) {
	if f.beside == 0 {
		return 0, 0
	}
	return f.beside, 1
}

// watcher hands a space what a state reports.
type watcher struct {
	*parttest.Watcher
	space *Space
}

func (w watcher) NoteFullLocked() { w.space.NoteFullLocked() }

// rank is a rank with a space, whose workers do not run.
type rank struct {
	*parttest.Rank
	*Space
	files *files
	known *parttest.Catalogue
	peers *parttest.Peers
}

func newRank(t *testing.T, change ...func(*residency.Options)) *rank {
	f := parttest.NewFiles(t)
	r := &rank{files: &files{Files: f, parts: map[tiers.Part][]tiers.Entry{}}, known: f.Shared(), peers: &parttest.Peers{}}
	use := func(o *residency.Options) { o.Policy, o.Cold = "lru", r.files }
	r.Rank = parttest.New(t, append([]func(*residency.Options){use}, change...)...)
	evict, room := eviction.New(r.State), eviction.NewNameBudget(r.State)
	x := others.New(r.State, room, writeback.New(r.State, evict, r.Seen), r.Seen)
	x.Peers = r.peers
	x.HasParts.Store(true)
	r.Space = New(r.State, room, x, load.New(r.State, evict, room, x), alone{})
	r.Watch = watcher{r.Seen, r.Space}
	return r
}

// budget is a change of options: room for so many blocks in the cold tier.
func budget(blocks int64) func(*residency.Options) {
	return func(o *residency.Options) { o.Limits.ColdBytes = blocks * size * 5 / 4 }
}

// fill puts blocks "0" to "n-1" into the cold tier alone, in chains of length, and
// returns their keys.
func (r *rank) fill(n, length int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
		name := parttest.Name(keys[i])
		if i%length > 0 {
			name.Parent = keys[i-1]
		}
		r.PutCold(name, parttest.Data(uint64(i), size))
	}
	return keys
}

// full has the cold tier refuse a block for want of room.
func (r *rank) full() {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.NoteColdLocked(fmt.Errorf("%w: for the test", tiers.ErrFull))
}

func (r *rank) limit() int64 {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.guarded.LowSpace.Limit()
}

func (r *rank) orphans() *residency.OrphanStats {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.OrphanStatsLocked()
}

// alone is a rank without peers.
type alone struct{}

func (alone) Seconds() []block.ID           { return nil }
func (alone) ForgetSeconds([]block.ID)      {}
func (alone) GiveUpSeconds(context.Context) {}
func (alone) MovedLocked(*residency.Block)  {}
