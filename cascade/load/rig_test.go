package load

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/names"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/writeback"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

const size = 1000 // of the blocks of these tests

// files is a cold tier whose reads wait, or fail, as a test wants, and that reads
// segments of others.
type files struct {
	*parttest.Files
	mu       sync.Mutex
	gate     chan struct{}      // what reads wait for, nil: nothing
	fail     map[block.ID]error // of blocks that can not be read
	segments map[string][]byte  // by path
	batches  []int              // how many blocks were read together
	missing  func(path string)  // called for a segment that is not there; nil: nothing
}

// stop has reads wait until the returned function is called.
func (f *files) stop() (goOn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = make(chan struct{})
	return sync.OnceFunc(func() { close(f.gate) })
}

// reads returns how many blocks were read together since the last call.
func (f *files) reads() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := f.batches
	f.batches = nil
	return counts
}

func (f *files) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	f.mu.Lock()
	f.batches = append(f.batches, len(reads))
	gate := f.gate
	f.mu.Unlock()
	errs := make([]error, len(reads))
	for i, r := range reads {
		errs[i] = f.readOne(ctx, gate, r)
		r.Done(errs[i])
	}
	return errs
}

func (f *files) readOne(ctx context.Context, gate chan struct{}, r tiers.Read) error {
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", tiers.ErrUnavailable, ctx.Err())
		}
	}
	if r.Pin == nil {
		return f.ReadSegment(ctx, r.At, r.Info, r.Dst)
	}
	if err := f.fail[r.Pin.Info().ID]; err != nil {
		return err
	}
	return r.Pin.ReadInto(ctx, r.Dst)
}

func (f *files) ReadSegment(_ context.Context, at tiers.Segment, info block.Info, dst []byte) error {
	data, ok := f.segments[at.Path]
	if !ok {
		if f.missing != nil {
			f.missing(at.Path)
		}
		return tiers.ErrNotFound
	}
	if copy(dst, data); block.CRC(dst) != info.CRC {
		return tiers.ErrCorrupt
	}
	return nil
}

// watcher hands an exchange what a state reports.
type watcher struct {
	*parttest.Watcher
	x *others.Exchange
}

func (w watcher) EnqueuePublishLocked(n *names.Name)         { w.x.EnqueuePublishLocked(n) }
func (w watcher) EnqueuePublishAllLocked(b *residency.Block) { w.x.EnqueuePublishAllLocked(b) }

// fetches is a loader that is made later.
type fetches struct{ ld *Loader }

func (f *fetches) InvalidateFetchLocked(id residency.NameID, before uint64) {
	f.ld.InvalidateFetchLocked(id, before)
}

func (f *fetches) InvalidateFetchesLocked(ns string, all bool, before uint64) {
	f.ld.InvalidateFetchesLocked(ns, all, before)
}

// rank is a rank with a loader, a cold tier, a catalogue and peers. Buffers that its
// loader got and gave back are counted.
type rank struct {
	*parttest.Rank
	*Loader
	t     *testing.T
	files *files
	known *parttest.Catalogue
	peers *parttest.Peers

	mu            sync.Mutex
	taken, gotten int
}

func newRank(t *testing.T, change ...func(*residency.Options)) *rank {
	f := parttest.NewFiles(t)
	r := &rank{
		t: t, files: &files{Files: f, fail: map[block.ID]error{}, segments: map[string][]byte{}}, known: f.Shared(), peers: &parttest.Peers{},
	}
	use := func(o *residency.Options) { o.Cold, o.ReadBuffers = r.files, r.buffer }
	r.Rank = parttest.New(t, append([]func(*residency.Options){use}, change...)...)
	evict, room, lazy := eviction.New(r.State), eviction.NewNameBudget(r.State), &fetches{}
	x := others.New(r.State, room, writeback.New(r.State, evict, r.Seen), lazy)
	r.Loader = New(r.State, evict, room, x)
	lazy.ld = r.Loader
	x.Peers = r.peers
	x.HasParts.Store(true)
	r.Watch = watcher{r.Seen, x}
	t.Cleanup(r.Workers.Wait)
	return r
}

func (r *rank) buffer(n int64) ([]byte, func(), bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++
	return make([]byte, n), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gotten++
	}, true
}

// buffers returns how many buffers are in use, and how many were taken.
func (r *rank) buffers() (inUse, taken int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken - r.gotten, r.taken
}

// join begins to read blocks of the cold tier, for one request.
func (r *rank) join(most eviction.Price, keys ...string) (all []*Fetch) {
	var fresh []*Fetch
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for _, k := range keys {
		n := r.Mu.Names.Get("ns", k)
		all = append(all, r.JoinBelowLocked(residency.BlockOf(n), n, most, &fresh))
	}
	r.StartLocked(fresh)
	return all
}

// get gets keys from elsewhere.
func (r *rank) get(ctx context.Context, keep bool, keys ...string) []*residency.View {
	views := make([]*residency.View, len(keys))
	var missing []int
	for i := range keys {
		missing = append(missing, i)
	}
	price := eviction.Unheld
	if keep {
		price = eviction.CopyOnly
	}
	r.GetElsewhere(ctx, "ns", keys, missing, views, price)
	return views
}

// wants checks and releases a view; nil data is a miss.
func (r *rank) wants(v *residency.View, data []byte, tier string) {
	r.t.Helper()
	switch {
	case (v == nil) != (data == nil):
		r.t.Errorf("the view is %v", v)
	case v == nil:
	case !bytes.Equal(v.Bytes(), data) || v.Tier() != tier:
		r.t.Errorf("other bytes from %s, want those of %s", v.Tier(), tier)
	}
	if v != nil {
		v.Release()
	}
}

// idle waits until nothing is on its way, and checks that nothing is held.
func (r *rank) idle() {
	r.t.Helper()
	r.Workers.Wait()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for _, f := range r.guarded.fetches {
		if f.landed == nil {
			r.t.Errorf("a fetch of %v does not end", f.source)
		}
	}
	if views := r.Count.Stats.Views; views != 0 {
		r.t.Errorf("%d views are held", views)
	}
	if n := len(r.fetching.taken) + len(r.reading); n != 0 {
		r.t.Errorf("%d places are taken", n)
	}
	parttest.CheckLocked(r.t, r.State)
}

// named is a name with a stamp.
func named(key string, seq uint64) block.Name {
	n := parttest.Name(key)
	n.Seq = seq
	return n
}
