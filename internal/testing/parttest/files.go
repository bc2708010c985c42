package parttest

import (
	"context"
	"sync"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// Files is a cold tier in memory. Embed it to override what a test needs otherwise.
type Files struct {
	tiers.Plain

	mu      sync.Mutex
	full    error            // what Put and Sync fail with
	batches [][]tiers.Item   // that were taken
	links   []block.Name     // of Link
	unlinks []block.Name     // of Unlink
	syncs   int              // that succeeded
	missing []block.ID       // what Missing returns next
	known   *Catalogue       // nil: none
	before  func([]block.ID) // called by Put with the mutex unlocked
}

// NewFiles returns a cold tier that holds nothing.
func NewFiles(t testing.TB) *Files {
	t.Helper()
	m, err := host.Open(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &Files{Plain: tiers.Plain{Tier: m}}
}

// Shared has the tier have a catalogue, which it returns.
func (f *Files) Shared() *Catalogue {
	f.known = &Catalogue{}
	return f.known
}

// Catalogue returns that of Shared, nil for none.
func (f *Files) Catalogue() tiers.Catalogue {
	if f.known == nil {
		return nil
	}
	return f.known
}

// Use is a change of options: the tier is the cold one.
func (f *Files) Use(o *residency.Options) { o.Cold = f }

// Refuse has Put and Sync fail with err; nil ends that.
func (f *Files) Refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = err
}

// BeforePut has fn called with what a Put is about to store.
func (f *Files) BeforePut(fn func([]block.ID)) { f.before = fn }

// Put records a batch that it stores.
func (f *Files) Put(ctx context.Context, items ...tiers.Item) error {
	if f.before != nil {
		f.before(idsOf(items))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full != nil {
		return f.full
	}
	if err := f.Plain.Put(ctx, items...); err != nil {
		return err
	}
	f.batches = append(f.batches, items)
	return nil
}

// Batches returns the ids of what was stored, Put by Put, since the last call.
func (f *Files) Batches() (ids [][]block.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, items := range f.batches {
		ids = append(ids, idsOf(items))
	}
	f.batches = nil
	return ids
}

func idsOf(items []tiers.Item) (ids []block.ID) {
	for _, it := range items {
		ids = append(ids, it.Info.ID)
	}
	return ids
}

// Link records a name.
func (f *Files) Link(id block.ID, n block.Name) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = append(f.links, n)
	return f.Plain.Link(id, n)
}

// Unlink records a withdrawal.
func (f *Files) Unlink(id block.ID, n block.Name) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unlinks = append(f.unlinks, n)
	return f.Plain.Unlink(id, n)
}

// Linked returns what was linked and unlinked since the last call.
func (f *Files) Linked() (links, unlinks []block.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	links, unlinks = f.links, f.unlinks
	f.links, f.unlinks = nil, nil
	return links, unlinks
}

// Sync counts what it makes durable.
func (f *Files) Sync(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full != nil {
		return f.full
	}
	f.syncs++
	return nil
}

// Syncs returns how often Sync succeeded.
func (f *Files) Syncs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs
}

// Lose takes blocks out as if somebody had removed their files: Missing reports them.
func (f *Files) Lose(t testing.TB, ids ...block.ID) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if err := f.Evict(id); err != nil {
			t.Fatal(err)
		}
	}
	f.missing = append(f.missing, ids...)
}

// Missing reports what was lost since the last call.
func (f *Files) Missing(context.Context) ([]block.ID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := f.missing
	f.missing = nil
	return ids, nil
}

// Holds reports whether a block is in the tier.
func (f *Files) Holds(id block.ID) bool {
	p, err := f.Pin(id)
	if err != nil {
		return false
	}
	p.Release()
	return true
}
