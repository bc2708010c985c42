package writeback

import (
	"context"
	"time"

	"cascadekv/cascade/content"
	"errors"
	"fmt"
	"slices"
	"testing"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

const size = 1000 // of the blocks of these tests

// newWriter returns the writer of a rank with a cold tier in memory.
func newWriter(t *testing.T, change ...func(*residency.Options)) (*parttest.Rank, *parttest.Files, *Writer) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, append([]func(*residency.Options){files.Use}, change...)...)
	return r, files, New(r.State, eviction.New(r.State), r.Seen)
}

// put puts blocks "0" to "n-1", those of odd numbers without an id, and returns the
// ids that they have or should get.
func put(r *parttest.Rank, n int) (ids []block.ID) {
	for i := range n {
		p := parttest.Data(uint64(i), size)
		if name := parttest.Name(fmt.Sprint(i)); i%2 == 0 {
			r.Put(name, p)
		} else {
			r.PutPending(name, p)
		}
		ids = append(ids, block.Sum(r.IDBits, p))
	}
	return ids
}

// A drain writes every dirty block, in the order in which they were put, under ids
// that are computed before.
func TestDrainWritesAllInPutOrder(t *testing.T) {
	r, files, w := newWriter(t)
	r.PutCold(parttest.Name("clean"), parttest.Data(1000, size))
	files.Batches()
	ids := put(r, 50)
	if n, err := w.Drain(t.Context()); n != 50 || err != nil {
		t.Fatalf("%d blocks, %v", n, err)
	}
	if got := files.Batches(); len(got) != 1 || !slices.Equal(got[0], ids) {
		t.Errorf("written %v, want %v", got, ids)
	}
	if st := r.Count.Stats; st.DirtyBlocks != 0 || st.PendingIDs != 0 || st.Views != 0 || r.Last().Stats.Demoted != 50 {
		t.Errorf("%+v", st)
	}
	if calls := parttest.Only(r.Seen.Take(), "accepted"); len(calls) != 1 {
		t.Errorf("the space learns %d times that blocks were taken", len(calls))
	}
	if n, err := w.Drain(t.Context()); n != 0 || err != nil || files.Batches() != nil {
		t.Errorf("a second drain writes %d blocks, %v", n, err)
	}
	parttest.Check(t, r.State)
}

// TestDrainWritesWhatMattersFirst: shared prefixes come in earlier batches than what was used, and that before the rest.
func TestDrainWritesWhatMattersFirst(t *testing.T) {
	r, files, w := newWriter(t)
	files.Batches()
	const each = cleanBlocks + cleanBlocks/2 // of a kind: more than a batch
	kind := map[block.ID]int{}
	for i := range 3 * each {
		n, p := parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 100)
		n.Prefix = i%3 == 2
		b := r.Put(n, p)
		r.State.Mu.Lock()
		b.Used = i%3 == 1 || i%6 == 5 // prefixes too
		r.State.Mu.Unlock()
		kind[block.Sum(r.IDBits, p)] = []int{2, 1, 0}[i%3]
	}
	if n, err := w.Drain(t.Context()); n != 3*each || err != nil {
		t.Fatalf("%d blocks, %v", n, err)
	}
	last := 0
	for i, batch := range files.Batches() {
		var kinds []int
		for _, id := range batch {
			kinds = append(kinds, kind[id])
		}
		if low := slices.Min(kinds); low < last {
			t.Errorf("batch %d has what matters more than what one before it has", i)
		}
		last = slices.Max(kinds)
	}
	if last != 2 {
		t.Errorf("the last batch has kinds up to %d", last)
	}
}

// A batch has a bounded number of blocks, and what was put first is written first.
func TestBatchesAreBounded(t *testing.T) {
	r, files, w := newWriter(t)
	const n = cleanBlocks + 10
	var ids []block.ID
	for i := range n {
		ids = append(ids, r.Put(parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 64)).Info.ID)
	}
	if wrote, err := w.Drain(t.Context()); wrote != n || err != nil {
		t.Fatalf("%d blocks, %v", wrote, err)
	}
	if got := files.Batches(); len(got) != 2 || !slices.Equal(got[0], ids[:cleanBlocks]) || !slices.Equal(got[1], ids[cleanBlocks:]) {
		t.Errorf("%d batches, of which the first is not what was put first", len(got))
	}
}

// Blocks of a write that failed stay dirty, and the tier is left alone for a while.
func TestARefusedWriteIsTriedAgain(t *testing.T) {
	for name, refused := range map[string]error{"full": tiers.ErrFull, "unavailable": tiers.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			r, files, w := newWriter(t)
			ids := put(r, 10)
			files.Refuse(refused)
			if n, err := w.Drain(t.Context()); n != 0 || !errors.Is(err, refused) || !errors.Is(err, errDrain) {
				t.Errorf("%d blocks, %v", n, err)
			}
			if st := r.Count.Stats; st.DirtyBlocks != 10 || st.Views != 0 || r.Cold.Stats.Errors != 1 {
				t.Errorf("%+v, %d errors", st, r.Cold.Stats.Errors)
			}
			if told := len(parttest.Only(r.Seen.Take(), "full")) > 0; told != (refused == tiers.ErrFull) {
				t.Errorf("the space learns that the tier is full: %v", told)
			}
			files.Refuse(nil)
			r.Mu.Lock()
			r.WakeCleanerLocked(true)
			r.Mu.Unlock()
			r.Advance(residency.ColdRetry - 1)
			if w.cleanSome(t.Context()) {
				t.Error("the tier is not left alone")
			}
			r.Advance(1)
			for w.cleanSome(t.Context()) {
				r.Mu.Lock()
				r.WakeCleanerLocked(true)
				r.Mu.Unlock()
			}
			if st := r.Count.Stats; st.DirtyBlocks != 0 {
				t.Errorf("%d blocks are dirty", st.DirtyBlocks)
			}
			for _, id := range ids {
				if !files.Holds(id) {
					t.Errorf("%v is not in the tier", id)
				}
			}
			parttest.Check(t, r.State)
		})
	}
}

// Where the tier has one of the blocks already, all are written one by one.
func TestWhatIsThereIsTaken(t *testing.T) {
	r, files, w := newWriter(t)
	ids := put(r, 4)
	p := parttest.Data(2, size)
	if err := files.Put(t.Context(), tiers.Item{Info: r.Block("2").Info, Data: p}); err != nil {
		t.Fatal(err)
	}
	files.Batches()
	if n, err := w.Drain(t.Context()); n != 4 || err != nil || r.Count.Stats.DirtyBlocks != 0 {
		t.Fatalf("%d blocks, %v; %d dirty", n, err, r.Count.Stats.DirtyBlocks)
	}
	if got := files.Batches(); len(got) != 3 {
		t.Errorf("%d writes", len(got))
	}
	if _, unlinks := files.Linked(); len(unlinks) > 0 || !files.Holds(ids[3]) {
		t.Errorf("withdrawn: %v", unlinks)
	}
}

// Bytes that fail their checksum are not written, and are withdrawn.
func TestBadBytesAreNotWritten(t *testing.T) {
	r, files, w := newWriter(t)
	p := parttest.Data(1, size)
	slot, err := r.Last().Memory.Reserve(size)
	if err != nil {
		t.Fatal(err)
	}
	copy(slot.Bytes(), p)
	bad := block.Info{ID: block.Sum(r.IDBits, p), Size: size, CRC: block.CRC(p) + 1}
	r.Commit(r.Last(), slot, parttest.Name("bad"), bad)
	r.Put(parttest.Name("good"), parttest.Data(2, size))
	if n, err := w.Drain(t.Context()); n != 1 || err != nil {
		t.Errorf("%d blocks, %v", n, err)
	}
	if r.Block("bad") != nil || files.Holds(bad.ID) || r.Count.Stats.Corrupt != 1 {
		t.Errorf("the bad one: %v, in the tier %v, %d corrupt", r.Block("bad"), files.Holds(bad.ID), r.Count.Stats.Corrupt)
	}
	parttest.Check(t, r.State)
}

// Names that come and go while their block is written are right in the tier afterwards.
func TestNamesThatChangeDuringAWrite(t *testing.T) {
	r, files, w := newWriter(t)
	p := parttest.Data(1, size)
	r.Put(parttest.Name("stays"), p)
	r.Put(parttest.Name("goes"), p)
	gone := r.Block("goes").Names()[1].Seq()
	files.BeforePut(func([]block.ID) {
		r.Delete("goes")
		r.Put(parttest.Name("comes"), p)
	})
	if n, err := w.Drain(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d blocks, %v", n, err)
	}
	links, unlinks := files.Linked()
	if len(links) != 1 || links[0].Key != "comes" || len(unlinks) != 1 || unlinks[0].Key != "goes" || unlinks[0].Seq != gone {
		t.Errorf("linked %v, unlinked %v", links, unlinks)
	}
	if files.Syncs() != 1 || r.Mu.Writes.SyncedSeq != r.Mu.Writes.LinkSeq {
		t.Errorf("%d syncs, %d of %d changes are durable", files.Syncs(), r.Mu.Writes.SyncedSeq, r.Mu.Writes.LinkSeq)
	}
}

// A block whose last name goes while it is written is not kept in the tier.
func TestABlockThatGoesDuringItsWrite(t *testing.T) {
	r, files, w := newWriter(t)
	b := r.Put(parttest.Name("a"), parttest.Data(1, size))
	files.BeforePut(func([]block.ID) { r.Delete("a") })
	if _, err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files.Holds(b.Info.ID) || len(r.Mu.Blocks) != 0 || r.Last().Memory.Usage().Blocks != 0 {
		t.Error("it is still there")
	}
}

// slow is an error of a write that still reads its memory.
type slow struct {
	error
	done chan struct{}
}

func (s slow) Done() <-chan struct{} { return s.done }

func (s slow) Unwrap() error { return s.error }

// Memory that a write may still read stays where it is until the write is over.
func TestAWriteOutlastsItsDeadline(t *testing.T) {
	r, files, w := newWriter(t)
	r.Put(parttest.Name("a"), parttest.Data(1, size))
	hung := slow{tiers.ErrUnavailable, make(chan struct{})}
	files.Refuse(hung)
	if _, err := w.Drain(t.Context()); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	views := func() int {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return r.Count.Stats.Views
	}
	if views() != 1 {
		t.Error("the bytes may move while the write reads them")
	}
	close(hung.done)
	parttest.Eventually(t, "the view ends", func() bool { return views() == 0 })
}

// Without a cold tier there is nothing to drain.
func TestDrainWithoutAColdTier(t *testing.T) {
	r := parttest.New(t)
	put(r, 3)
	if n, err := New(r.State, eviction.New(r.State), r.Seen).Drain(t.Context()); n != 0 || err != nil {
		t.Errorf("%d blocks, %v", n, err)
	}
}

// slowShared is what asks other ranks: by default all is this rank's to write.
type slowShared struct {
	divide func(views []*residency.View, patient bool) content.Division
}

func (s slowShared) Divide(_ context.Context, views []*residency.View, patient bool) content.Division {
	return s.divide(views, patient)
}
func (slowShared) WaitsLocked(*residency.Block) bool { return false }
func (slowShared) UnclaimLocked(*residency.Block)    {}

// A drain is not over while the cleaner has blocks that were dirty when it began.
func TestDrainAwaitsTheCleaner(t *testing.T) {
	r, files, w := newWriter(t, crowded(100))
	asks, answer := make(chan struct{}), make(chan struct{})
	first := true
	w.Share(slowShared{func(views []*residency.View, _ bool) content.Division {
		if first {
			first = false
			close(asks)
			<-answer
		}
		return content.Division{Ours: views}
	}})
	put(r, 20)
	demand(r)
	cleaned := make(chan bool)
	go func() { cleaned <- w.cleanSome(t.Context()) }()
	<-asks
	time.AfterFunc(100*time.Millisecond, func() { close(answer) })
	if _, err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Mu.Lock()
	dirty := r.Count.Stats.DirtyBlocks
	r.Mu.Unlock()
	if dirty != 0 {
		t.Errorf("%d blocks are dirty after a drain", dirty)
	}
	<-cleaned
	if len(files.Batches()) == 0 {
		t.Error("nothing was written")
	}
}

// What other ranks were first to claim and do not write is written without another wait, once
// they were waited for.
func TestDrainWaitsOnceForRanksThatDoNotWrite(t *testing.T) {
	r, _, w := newWriter(t)
	waited := 0
	w.Share(slowShared{func(views []*residency.View, patient bool) content.Division {
		if patient {
			waited++
			r.Advance(drainPatience / 8)
			return content.Division{Wait: views}
		}
		return content.Division{Ours: views}
	}})
	const n = 3*cleanBlocks + 10
	for i := range n {
		r.Put(parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 64))
	}
	if wrote, err := w.Drain(t.Context()); wrote != n || err != nil {
		t.Fatalf("%d blocks, %v", wrote, err)
	}
	if waited != 8 {
		t.Errorf("other ranks were asked to write %d times, want 8", waited)
	}
}
