package cascade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// A client chooses the cursor: one that looks like one of the catalogue must not end a
// process that has none.
func TestSpillScanCursorWithoutCatalogue(t *testing.T) {
	r := newRig(t, 4<<20, false)
	r.put(ns("a"), data(1, 5000))
	if next := r.Scan("ns", 1<<62, 10, func(string) bool { return true }); next != 0 {
		t.Errorf("cursor %d", next)
	}
}

// A scan whose time is up after each name sees all names.
func TestSpillScanInShortSteps(t *testing.T) {
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
func TestSpillScanSeesWhatIsRead(t *testing.T) {
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
func TestSpillExpiredFilesGo(t *testing.T) {
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
	c.takeIn(r) // before that names elsewhere may stand for it
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

// What a name was before it was put with an end does not come back when the index is
// lost, though the file with its end is gone.
func TestSpillEndedNameHides(t *testing.T) {
	w := newWorld(t)
	w.r.put(ns("k"), data(1, 30_000))
	w.r.chain("a", 0, 100, 1000)
	w.spill()
	first := w.r.state.Cold.Files.Spilled()[0]
	e := ns("k")
	e.Expires = w.now().Add(time.Minute)
	w.r.put(e, data(2, 30_000))
	w.r.chain("b", 0, 100, 2000)
	w.spill()
	w.late.Add(int64(time.Hour))
	w.r.Sweep()
	for _, f := range w.r.state.Cold.Files.Spilled() {
		if f.Number > first.Number {
			w.r.space.Reload(t.Context(), f, coldspace.Leave)
		}
	}
	for i := range 100 { // so that the files go
		w.r.Delete(t.Context(), "ns", fmt.Sprint("b", i))
		if i > 40 {
			w.r.Delete(t.Context(), "ns", fmt.Sprint("a", i))
		}
	}
	for range 3 {
		if _, err := w.r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.r.space.MergeAll(t.Context())
	}
	w.r.want("k", nil)
	w.close(false)
	if err := os.RemoveAll(w.local); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.r.want("k", nil)
	w.close(false)
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
func TestSpillIndexMissesALink(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		t.Run(fmt.Sprint(overwrite), func(t *testing.T) {
			c := newCampaign(t)
			r := c.small(func(o *Options) { o.Policy = "lru" })
			r.chain("k", 0, 200, 1000)
			if c.spill(r) == 0 || !r.onlySpilled("k0") {
				t.Fatal("nothing is spilled")
			}
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
			r.state.Mu.Lock()
			b := r.state.Mu.Names.Get("ns", key).Block().Owner.(*residency.Block)
			t.Log("put", b.Cold, b.From, b.InAny(), b.LinkSeq, r.state.Mu.Writes.SyncedSeq)
			r.state.Mu.Unlock()
			r.want(key, data(1000, spillBlock))
			r.chain("other", 0, 400, 5000) // pushes it out
			c.spill(r)
			r.chain("another", 0, 400, 6000)
			c.spill(r)
			r.state.Mu.Lock()
			if n := r.state.Mu.Names.Get("ns", key); n != nil && n.Block() != nil {
				b := n.Block().Owner.(*residency.Block)
				t.Log("still here", b.Cold, b.From, b.InAny(), b.LinkSeq, r.state.Mu.Writes.SyncedSeq, b.Below)
			}
			r.state.Mu.Unlock()
			t.Log(r.onlySpilled(key))
			r.want(key, data(1000, spillBlock))
			c.end(r)
			r = c.small()
			r.want(key, data(1000, spillBlock))
			c.end(r)
		})
	}
}

func TestSpillDepthBelowASpilledParent(t *testing.T) {
	c, r := spilledChain(t, 200)
	e := ns("child")
	e.Parent = "k3"
	r.put(e, data(1, spillBlock))
	if info, _ := r.Stat(t.Context(), "ns", "child"); info.Depth != 4 {
		t.Errorf("depth %d", info.Depth)
	}
	c.end(r)
}

// A bound name is visible while its parent is, also when that is spilled.
func TestSpillBoundToASpilledParent(t *testing.T) {
	c, r := spilledChain(t, 200)
	e := ns("half")
	e.Parent, e.Bound = "k3", true
	r.put(e, data(1, spillBlock))
	if !r.onlySpilled("k3") {
		t.Fatal("k3 is here")
	}
	if !r.Contains(t.Context(), "ns", "half") {
		t.Error("it is not there")
	}
	if got := r.scanAll(); len(got) != 201 {
		t.Errorf("a scan has %d of 201 names", len(got))
	}
	r.want("half", data(1, spillBlock))
	r.put(e, data(2, spillBlock))
	r.want("half", data(2, spillBlock))
	if !r.Expire(t.Context(), "ns", "half", c.now().Add(time.Hour)) {
		t.Error("it gets no end")
	}
	c.end(r)
}

// slow is a campaign whose reads of files can be held up.
func slowReads(t *testing.T, n int) (*campaign, *rig, *vfstest.Fault) {
	c := newCampaign(t)
	f := vfstest.NewFault(vfs.OS{})
	c.fs = f
	r := c.small()
	r.chain("k", 0, n, 1000)
	if c.spill(r) == 0 || !r.onlySpilled("k0") {
		t.Fatal("nothing is spilled")
	}
	return c, r, f
}

// What was put and spilled while an older version was read is what is found afterwards.
func TestSpillSlowReadOfAnOldVersion(t *testing.T) {
	c, r, f := slowReads(t, 200)
	block := make(chan struct{})
	f.Add(vfstest.Rule{Op: vfs.OpRead, Path: ".bin", Count: 1, Block: block})
	got := make(chan error)
	go func() {
		v, err := r.Get(context.Background(), "ns", "k0")
		if err == nil {
			v.Release()
		}
		got <- err
	}()
	time.Sleep(50 * time.Millisecond)
	select {
	case <-got:
		t.Fatal("the read is not held up")
	default:
	}
	f.Clear()
	r.put(ns("k0"), data(77, spillBlock))
	r.chain("other", 0, 400, 5000)
	c.spill(r)
	r.chain("another", 0, 400, 6000)
	c.spill(r)
	t.Log("only spilled:", r.onlySpilled("k0"))
	close(block)
	t.Log(<-got)
	time.Sleep(50 * time.Millisecond)
	r.want("k0", data(77, spillBlock))
	c.end(r)
}

// Of a block that lies in two files the store takes the older copy, the index the younger:
// when the younger file is merged away, the index must know the older copy.
func TestSpillTwoCopies(t *testing.T) {
	c := newCampaign(t)
	r := c.small()
	for i := range 60 {
		r.put(ns(fmt.Sprint("a", i)), data(uint64(i), spillBlock))
	}
	if _, err := r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.chain("fill", 0, 100, 9000)
	c.spill(r)
	r.Delete(t.Context(), "ns", "a0")
	if err := r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.space.Reload(t.Context(), r.state.Cold.Files.Spilled()[0], coldspace.Leave)
	r.put(ns("again"), data(0, spillBlock))
	for i := range 20 {
		r.put(ns(fmt.Sprint("b", i)), data(uint64(100+i), spillBlock))
	}
	c.end(r)
	if err := os.RemoveAll(c.local); err != nil {
		t.Fatal(err)
	}
	r = c.small()
	r.want("again", data(0, spillBlock))
	for i := range 20 {
		r.Delete(t.Context(), "ns", fmt.Sprint("b", i))
	}
	for i := range 100 {
		r.Delete(t.Context(), "ns", fmt.Sprint("fill", i))
	}
	if err := r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	at0, err0 := r.state.Cold.Files.Segment(block.Sum(block.Bits128, data(0, spillBlock)))
	t.Log(ls(c.dir), "store", at0.Path, err0, "index", r.state.Cold.Files.Catalogue().Own([]block.ID{block.Sum(block.Bits128, data(0, spillBlock))})[0].Segment.Path)
	for range 5 {
		for r.space.MergeOnce(t.Context()) {
		}
		time.Sleep(20 * time.Millisecond)
	}
	id := block.Sum(block.Bits128, data(0, spillBlock))
	at, err := r.state.Cold.Files.Segment(id)
	t.Log(ls(c.dir), "store", at.Path, err, "index", r.state.Cold.Files.Catalogue().Own([]block.ID{id})[0].Segment.Path)
	c.spill(r)
	for part := range 3 {
		r.chain(fmt.Sprint("other", part), 0, 100, 5000)
		c.spill(r)
	}
	r.want("again", data(0, spillBlock))
	c.end(r)
	r = c.small()
	r.want("again", data(0, spillBlock))
	c.end(r)
}

// What is put with the bytes of a spilled block and deleted at once does not come back.
func TestSpillDeletedBeforeItsLinkIsDurable(t *testing.T) {
	c, r := spilledChain(t, 200)
	r.put(ns("fresh"), data(1000, spillBlock))
	r.Delete(t.Context(), "ns", "fresh")
	if err := r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.others.SyncInTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.later(24 * time.Hour)
	r.Sweep()
	if r.Contains(t.Context(), "ns", "fresh") {
		t.Error("it is back in the same run")
	}
	c.end(r)
	r = c.small()
	if r.Contains(t.Context(), "ns", "fresh") {
		t.Error("it is back")
	}
	c.end(r)
}
