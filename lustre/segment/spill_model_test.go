package segment

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// entries is an Indexer that keeps what it is given.
type entries struct {
	mu     sync.Mutex
	files  map[format.FileID]*indexed
	gone   []format.FileID
	dead   map[block.ID]bool // blocks that were evicted
	failed error             // of Wrote
	wrote  int               // calls of it
}

type indexed struct {
	blocks   map[block.ID]Stored
	records  []format.Record
	layouts  int
	complete int64 // bytes of the file, once it is
}

func newEntries() *entries {
	return &entries{files: map[format.FileID]*indexed{}, dead: map[block.ID]bool{}}
}

func (x *entries) Wrote(ctx context.Context, p tiers.Part, number uint64, c Contents) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrote++; x.failed != nil {
		return x.failed
	}
	id := segmentOf(p, number)
	f := x.files[id]
	if f == nil {
		f = &indexed{blocks: map[block.ID]Stored{}}
		x.files[id] = f
	}
	for _, it := range c.Blocks {
		f.blocks[it.Info.ID] = it
	}
	f.records = append(f.records, c.Names...)
	f.layouts += len(c.Layouts)
	return ctx.Err()
}

func (x *entries) Has(p tiers.Part, number uint64) (Spilled, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.files[segmentOf(p, number)]
	if f == nil || f.complete == 0 {
		return Spilled{}, false
	}
	is := Spilled{Part: p, Number: number, Size: f.complete, Blocks: len(f.blocks)}
	for _, it := range f.blocks {
		is.Payload += it.Info.Size
	}
	return is, true
}

func (x *entries) Complete(_ context.Context, p tiers.Part, number uint64, size int64, here []Stored) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.files[segmentOf(p, number)]
	for _, it := range here {
		if f.blocks[it.Info.ID].At != it.At {
			return fmt.Errorf("%v is not at %+v", it.Info.ID, it.At)
		}
	}
	f.complete = size
	return nil
}

// unmark has the next start read all files but some, as if their entries were not whole
// when a process was killed.
func (x *entries) unmark(but ...Spilled) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, f := range x.files {
		if !slices.ContainsFunc(but, func(s Spilled) bool { return segmentOf(s.Part, s.Number) == id }) {
			f.complete = 0
		}
	}
}

func (x *entries) Gone(p tiers.Part, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.files, segmentOf(p, number))
	x.gone = append(x.gone, segmentOf(p, number))
}

// newest returns the newest record of each name.
func (x *entries) newest() map[string]format.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string]format.Record{}
	for _, f := range x.files {
		for _, r := range f.records {
			if old, ok := all[r.Name.Key]; !ok || r.Name.Seq > old.Name.Seq {
				all[r.Name.Key] = r
			}
		}
	}
	return all
}

// counts implements what Reload asks for.
func (x *entries) counts(records []format.Record) ([]Worth, error) {
	newest, worth := x.newest(), make([]Worth, len(records))
	for i, r := range records {
		if newest[r.Name.Key].Name.Seq == r.Name.Seq {
			if worth[i] = Counting; r.Dropped {
				worth[i] = Hiding // it knows nothing of other ranks
			}
		}
	}
	return worth, nil
}

// find returns where a block lies.
func (x *entries) find(id block.ID) (Stored, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.files {
		if it, ok := f.blocks[id]; ok {
			return it, true
		}
	}
	return Stored{}, false
}

func (x *entries) forget(id block.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dead[id] = true
}

func (x *entries) isDead(id block.ID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dead[id]
}

// TestSpillModel: puts, names, withdrawals, spills, merges and reloads at the same time
// lose no name and bring none back, whether the index survives or not.
func TestSpillModel(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	o := pairs(dir, 1)
	o.SegmentBlocks = 5
	s := openIndexed(t, o, x)
	const workers, steps = 3, 400
	var all sync.WaitGroup
	stop := make(chan struct{})
	want := make([]map[string]block.ID, workers)
	for w := range workers {
		want[w] = map[string]block.ID{}
		all.Go(func() { modelWorker(t, s, x, w, steps, want[w]) })
	}
	var rounds sync.WaitGroup
	rounds.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Merge(t.Context(), 0, func([]block.ID) {}); err != nil {
				t.Errorf("Merge: %v", err)
			}
			if files := s.SpilledFiles(); len(files) > 3 {
				f := files[rng.IntN(len(files))]
				got, err := s.Reload(t.Context(), f.Part, f.Number, x.counts)
				if err != nil {
					t.Errorf("Reload: %v", err)
				}
				for _, e := range got {
					if x.isDead(e.Info.ID) {
						_ = s.Evict(e.Info.ID) // or it is gone
					}
				}
			}
		}
	})
	rounds.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, _, err := s.Spill(t.Context(), always); err != nil {
				t.Errorf("Spill: %v", err)
			}
		}
	})
	all.Wait()
	close(stop)
	rounds.Wait()
	if m := s.Merged(); m.Segments == 0 || len(s.SpilledFiles()) == 0 {
		t.Errorf("merged %+v, spilled %d", m, len(s.SpilledFiles()))
	}
	must(t, s.Sync(t.Context()))
	names := map[string]block.ID{}
	for _, w := range want {
		maps.Copy(names, w)
	}
	wantNames(t, x, names)
	closeStore(t, s)
	empty := newEntries()
	s = openIndexed(t, pairs(dir, 2), empty)
	for key, id := range names {
		if s.names[key] != id {
			t.Errorf("after a restart %q is %v, want %v", key, s.names[key], id)
		}
	}
	if len(s.names) != len(names) {
		t.Errorf("%d names after a restart, want %d", len(s.names), len(names))
	}
}

// modelWorker changes names of its own, and notes what they should be.
func modelWorker(t *testing.T, s *opened, x *entries, w, steps int, want map[string]block.ID) {
	rng := rand.New(rand.NewPCG(uint64(w), 7))
	var ids []block.ID
	for i := range steps {
		seq := uint64(10*i + 10)
		key := fmt.Sprint(w, " ", rng.IntN(30))
		switch n := rng.IntN(10); {
		case n < 6 || len(ids) == 0:
			it := testItem(uint64(1000*w+i), 5000, testName(key, seq))
			if err := s.Put(t.Context(), it); err != nil {
				t.Errorf("Put: %v", err)
				return
			}
			ids = append(ids, it.Info.ID)
			want[key] = it.Info.ID
		case n < 8:
			id := ids[rng.IntN(len(ids))]
			if err := s.LinkSpilled(id, testName(key, seq)); err != nil {
				t.Errorf("LinkSpilled: %v", err)
			}
			want[key] = id
		case n < 9:
			at := rng.IntN(len(ids))
			if slices.Contains(slices.Collect(maps.Values(want)), ids[at]) {
				continue
			}
			x.forget(ids[at])
			_ = s.Evict(ids[at]) // or it is spilled
			ids = slices.Delete(ids, at, at+1)
		default:
			if err := s.Unlink(block.ID{}, testName(key, seq)); err != nil {
				t.Errorf("Unlink: %v", err)
			}
			delete(want, key)
		}
	}
}

// wantNames compares the newest records of an index with a model.
func wantNames(t *testing.T, x *entries, names map[string]block.ID) {
	t.Helper()
	for key, r := range x.newest() {
		if id, ok := names[key]; ok == r.Dropped || ok && id != r.ID {
			t.Errorf("the index has %+v, want %v %v", r, ok, id)
		}
	}
	for key, id := range names {
		if r := x.newest()[key]; r.ID != id {
			t.Errorf("the index has %+v of %q, want %v", r, key, id)
		}
		if _, ok := x.find(id); !ok {
			t.Errorf("the index has no block %v", id)
		}
	}
}
