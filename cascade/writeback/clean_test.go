package writeback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/content"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// crowded is a change of options: room for so many blocks, the cleaner wants half of
// it clean.
func crowded(blocks int64) func(*residency.Options) {
	return func(o *residency.Options) {
		o.Capacity, o.Policy, o.Limits.CleanAbove = blocks*size, "lru", 0.5
	}
}

func demand(r *parttest.Rank) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.WakeCleanerLocked(true)
}

// The cleaner writes when memory is crowded or somebody waits, and never otherwise.
func TestTheCleanerWritesAheadOfNeed(t *testing.T) {
	r, files, w := newWriter(t, crowded(100))
	put(r, 50)
	if w.cleanSome(t.Context()) || files.Batches() != nil {
		t.Error("it writes while there is room")
	}
	demand(r)
	if !w.cleanSome(t.Context()) || len(files.Batches()) != 1 || r.Mu.Writes.CleanRequested {
		t.Error("it does not write what is demanded, or twice")
	}
	if w.cleanSome(t.Context()) {
		t.Error("one demand is served twice")
	}
	r.Put(parttest.Name("one more"), parttest.Data(1000, size))
	if !w.cleanSome(t.Context()) {
		t.Error("it does not write though memory is crowded")
	}
}

// The cleaner writes no more than its budget and one block, begins again once there is some, and
// a drain, which has no budget, writes all.
func TestTheCleanerKeepsItsBudget(t *testing.T) {
	r, files, w := newWriter(t, crowded(100), func(o *residency.Options) { o.Limits.WriteRate = 5*size + 1 })
	put(r, 100)
	n := 0
	written := func() int {
		for _, b := range files.Batches() {
			n += len(b)
		}
		return n
	}
	for w.cleanSome(t.Context()) {
	}
	if n, left := written(), r.Cold.Writes.Left(); n != 6 || left != 1-size {
		t.Errorf("%d are written, %d bytes are left", n, left)
	}
	if demand(r); w.cleanSome(t.Context()) {
		t.Error("it writes on demand without a budget")
	}
	if w.untilBudget() == nil {
		t.Error("it does not look again")
	}
	r.Advance(time.Second)
	if !w.cleanSome(t.Context()) || written() != 11 {
		t.Errorf("%d are written after a second more", written())
	}
	before := r.Cold.Writes.Left()
	spent := func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return residency.FilesLocked(r.State).Spent
	}
	files.BeforePut(func([]block.ID) {
		if before > 0 || spent() {
			t.Error("what is to be drained may be dropped")
		}
	})
	if _, err := w.Drain(t.Context()); err != nil || written() != 100 || r.Cold.Writes.Left() != before {
		t.Errorf("%v: %d are written after a drain, of a budget of %d", err, written(), before-r.Cold.Writes.Left())
	}
	if !spent() {
		t.Error("no budget holds after a drain")
	}
}

// The coldest blocks are written first, each with what is dirty before it in its
// chain, a bounded part of memory at once; they are held meanwhile.
func TestTheColdestAreWrittenFirst(t *testing.T) {
	const n = 64
	r, files, w := newWriter(t, crowded(n))
	r.Put(parttest.Name("head"), parttest.Data(1000, size))
	r.Put(parttest.Name("tail", "head"), parttest.Data(1001, size))
	for i := range n - 2 {
		r.Put(parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), size))
	}
	r.Ask("head")
	var held []block.ID
	next := func() string {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return w.evict.VictimLocked(r.Last()).Names()[0].Key()
	}
	first := ""
	files.BeforePut(func(ids []block.ID) {
		first, held = next(), ids
		r.Mu.Lock()
		defer r.Mu.Unlock()
		if b := r.Mu.Writes.Batch; !b.InFlight || b.Clean != 0 {
			t.Errorf("%+v", b)
		}
	})
	if !w.cleanSome(t.Context()) {
		t.Fatal("nothing is written")
	}
	files.BeforePut(nil)
	want := []block.ID{r.Block("head").Info.ID, r.Block("tail").Info.ID}
	most := int(r.Last().Memory.Usage().Used / cleanShare / size)
	for i := 0; len(want) < len(held); i++ {
		want = append(want, r.Block(fmt.Sprint(i)).Info.ID)
	}
	if !slices.Equal(held, want) || len(held) > most+2 || len(held) < 4 {
		t.Errorf("%d blocks are written, at most %d: %v", len(held), most, held)
	}
	if first != fmt.Sprint(len(held)-2) {
		t.Errorf("while they are written %q leaves next", first)
	}
	if r.Mu.Writes.Batch.InFlight || r.Block("head").Writing {
		t.Error("the batch does not end")
	}
	// Clean victims come before dirty ones, and are not written again.
	clean := len(held)
	if !w.cleanSome(t.Context()) || r.Mu.Writes.Batch.Clean != clean-1 { // the head is held by the tail
		t.Errorf("%d clean victims are known, want %d", r.Mu.Writes.Batch.Clean, clean-1)
	}
	if got := next(); got != "tail" {
		t.Errorf("%q leaves next, want the clean tail", got)
	}
	parttest.Check(t, r.State)
}

// In a tier above the last only what falls to the cold tier is written.
func TestWhatFallsToMemoryIsNotWritten(t *testing.T) {
	r, files, w := newWriter(t, func(o *residency.Options) {
		o.Policy = "paper"
		o.Memory = []tiers.Memory{parttest.Host(t), parttest.Arena(t, t.TempDir()+"/a")}
	})
	for i := range 20 {
		prefix := parttest.Name(fmt.Sprint("prefix", i))
		prefix.Prefix = true
		r.PutIn(r.Mem[0], prefix, parttest.Data(uint64(100+i), size))
	}
	b := r.PutIn(r.Mem[0], parttest.Name("session"), parttest.Data(2, size))
	demand(r)
	if !w.cleanSome(t.Context()) {
		t.Fatal("nothing is written")
	}
	if got := files.Batches(); len(got) != 1 || !slices.Equal(got[0], []block.ID{b.Info.ID}) {
		t.Errorf("written %v", got)
	}
}

// The worker writes what is demanded, asks the space to shrink, syncs names when
// somebody waits for them, and ends.
func TestCleanInBackground(t *testing.T) {
	r, files, w := newWriter(t)
	put(r, 4)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.CleanInBackground(ctx)
	}()
	demand(r)
	dirty := func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.WakeCleanerLocked(true)
		return r.Count.Stats.DirtyBlocks > 0
	}
	parttest.Eventually(t, "all is clean", func() bool { return !dirty() })
	r.Put(parttest.Name("again"), parttest.Data(0, size)) // a name in the tier
	r.Mu.Lock()
	r.RequestSyncLocked()
	r.Mu.Unlock()
	parttest.Eventually(t, "the name is durable", func() bool { return files.Syncs() == 1 })
	stop()
	<-ended
	if calls := parttest.Only(r.Seen.Take(), "shrink"); len(calls) < 2 {
		t.Errorf("the space is asked to shrink %d times", len(calls))
	}
}

// Names are durable once the tier was synced, which one writer at a time does.
func TestSync(t *testing.T) {
	r, files, w := newWriter(t)
	p := parttest.Data(1, size)
	r.PutCold(parttest.Name("a"), p)
	if err := w.SyncInTurn(t.Context()); err != nil || files.Syncs() != 0 {
		t.Errorf("%v, %d syncs without a change", err, files.Syncs())
	}
	r.Put(parttest.Name("b"), p)
	files.Refuse(tiers.ErrUnavailable)
	if err := w.SyncInTurn(t.Context()); !errors.Is(err, tiers.ErrUnavailable) || !w.namesWait() {
		t.Errorf("%v; the name waits: %v", err, w.namesWait())
	}
	if again := w.syncOrLater(t.Context()); again == nil || r.ColdUp() {
		t.Error("a sync that failed is not tried later")
	}
	files.Refuse(nil)
	if err := w.writing.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := make(chan error)
	go func() { got <- w.SyncInTurn(ctx) }()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("while somebody else writes: %v", err)
	}
	w.writing.Give()
	if err := w.SyncInTurn(t.Context()); err != nil || files.Syncs() != 1 || w.namesWait() {
		t.Errorf("%v, %d syncs; the name waits: %v", err, files.Syncs(), w.namesWait())
	}
}

// Victims that wait for another rank are neither clean, nor do they keep the cleaner from
// what it may write.
func TestTheCleanerPassesOverWhatWaits(t *testing.T) {
	const waiting = 3 * residency.EnoughClean
	r, files, w := newWriter(t, crowded(4*waiting))
	put(r, waiting+20)
	waits := map[*residency.Block]bool{}
	for i := range waiting {
		waits[r.Block(fmt.Sprint(i))] = true
	}
	w.Share(waitingShared{slowShared{func(views []*residency.View, _ bool) content.Division {
		return content.Division{Ours: views}
	}}, waits})
	demand(r)
	if !w.cleanSome(t.Context()) {
		t.Fatal("nothing is written")
	}
	if got := files.Batches(); len(got) != 1 || len(got[0]) == 0 || r.Mu.Writes.Batch.Clean != 0 {
		t.Errorf("%d batches, %d victims are clean", len(got), r.Mu.Writes.Batch.Clean)
	}
	parttest.Check(t, r.State)
}

type waitingShared struct {
	slowShared
	waits map[*residency.Block]bool
}

func (s waitingShared) WaitsLocked(b *residency.Block) bool { return s.waits[b] }
