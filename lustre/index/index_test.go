package index

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/block"
)

func TestChain(t *testing.T) {
	x := open(t, memOptions())
	all := numbers(0, 100)
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), all...), Names: chain(1, all...)})
	probe(t, x, 100, all...)
	probe(t, x, 100, append(all, 500)...)
	probe(t, x, 0, 500)
	for _, n := range all {
		want := blockIn(seg(1), n)
		if b, err := x.Get(id(n)); err != nil || b != want {
			t.Fatalf("get %d: %+v, %v", n, b, err)
		}
		b, name, err := x.Find(key(n))
		if err != nil || b != want || name.Depth != uint32(n) || name.Seq != 1 || name.ID != id(n) {
			t.Fatalf("find %d: %+v, %+v, %v", n, b, name, err)
		}
	}
	if err := x.DeleteSegment(context.Background(), seg(1)); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 0, all...)
	if _, err := x.Get(id(3)); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// Of a prompt that others share, each conversation is one run, and what they
// share another: a probe of it costs one search for each.
func TestRuns(t *testing.T) {
	x := open(t, memOptions())
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), numbers(0, 300)...), Names: chain(1, numbers(0, 50)...)})
	for c := range uint64(3) {
		own := append(numbers(0, 50), numbers(100+c*20, 110+c*20)...)
		for n := 51; n <= len(own); n += 3 { // a turn at a time
			put(t, x, Batch{Segment: seg(1), Mark: 1, Names: chain(1, own[:n]...)[max(0, n-3):]})
		}
		put(t, x, Batch{Segment: seg(1), Mark: 1, Names: chain(1, own...)[57:]})
		probe(t, x, 60, own...)
	}
	runs := map[Key]int{}
	err := x.read(func(r *reader) error {
		_, err := r.scan([]byte{kindName}, 1000, kindName, func(key, value []byte) error {
			at, err := decodeNameKey(key)
			if at.pos != alone {
				runs[at.run]++
			}
			return err
		})
		return err
	})
	if err != nil || len(runs) != 3 || runs[key(0)] != 60 || runs[key(120)] != 10 || runs[key(140)] != 10 {
		t.Errorf("runs of %v names, %v", runs, err)
	}
}

// A hole ends a probe and not a get_batch, and presence need not be monotone.
func TestHoles(t *testing.T) {
	x := open(t, memOptions())
	all := numbers(0, 64)
	for n := range uint64(64) {
		put(t, x, Batch{Segment: seg(n % 4), Mark: n, Blocks: stored(seg(n%4), n), Names: chain(1, all...)[n : n+1]})
	}
	if err := x.DeleteSegment(context.Background(), seg(2)); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 2, all...)
	got := make([]Entry, 64)
	if n, err := x.FindBatch(keys(all...), got); n != 48 || err != nil {
		t.Errorf("find_batch: %d, %v", n, err)
	}
	for n, e := range got {
		if hole := n%4 == 2; hole != e.Block.Info.ID.IsZero() {
			t.Errorf("block %d: %+v", n, e)
		}
	}
	s := x.Stats()
	if s.Puts != 128 || s.Hits != 2+48 || s.Misses != 1+16 || s.Ranges != 2 || s.Segments != 3 || s.Entries != 96 || s.Dead != 32 {
		t.Errorf("stats: %+v", s)
	}
}

func TestWideIDs(t *testing.T) {
	x := open(t, memOptions())
	var b Batch
	for n := range byte(3) { // of the same first half
		it := blockIn(seg(1), uint64(n))
		it.Info.ID = block.Sum(block.Bits256, []byte("wide"))
		it.Info.ID[31] = n
		b.Blocks = append(b.Blocks, it)
		b.Names = append(b.Names, Name{Key: key(uint64(n)), ID: it.Info.ID})
	}
	b.Segment = seg(1)
	put(t, x, b)
	for n, it := range b.Blocks {
		if got, err := x.Get(it.Info.ID); err != nil || got != it {
			t.Errorf("get: %+v, %v", got, err)
		}
		probe(t, x, 1, uint64(n))
	}
	narrow := b.Blocks[0].Info.ID
	clear(narrow[16:])
	if _, err := x.Get(narrow); !errors.Is(err, ErrNotFound) {
		t.Error("half an id: ", err)
	}
}

func TestBadItems(t *testing.T) {
	x := open(t, memOptions())
	good := blockIn(seg(1), 3)
	for name, change := range map[string]func(b *Block, n *Name){
		"no id":       func(b *Block, _ *Name) { b.Info.ID = block.ID{} },
		"provisional": func(b *Block, _ *Name) { b.Info.ID = block.Provisional(3) },
		"size":        func(b *Block, _ *Name) { b.Info.Size = -1 },
		"offset":      func(b *Block, _ *Name) { b.Place.Offset = -1 },
		"stored":      func(b *Block, _ *Name) { b.Place.Stored++ },
		"no key":      func(_ *Block, n *Name) { n.Key = Key{} },
		"depth":       func(_ *Block, n *Name) { n.Depth = maxDepth + 1 },
	} {
		b, n := good, Name{Key: key(1), ID: good.Info.ID}
		change(&b, &n)
		err := x.PutBatch(context.Background(), Batch{Segment: seg(1), Blocks: []Block{good, b}, Names: []Name{n}})
		if !errors.Is(err, ErrBadItem) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := x.Get(good.Info.ID); !errors.Is(err, ErrNotFound) {
		t.Error("half of a batch was put: ", err)
	}
	if _, err := x.FindBatch(keys(1, 2), nil); !errors.Is(err, ErrBadItem) {
		t.Error(err)
	}
}

// Deleting a segment does not look at its entries; they go later, in the
// background, and what was put again meanwhile stays.
func TestDeleteSegment(t *testing.T) {
	o := memOptions()
	o.cleanAfter = 100
	x := open(t, o)
	ctx := context.Background()
	all := numbers(0, 3000)
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), all...), Names: chain(1, all...)})
	put(t, x, Batch{Segment: seg(2), Mark: 1, Blocks: stored(seg(2), all[:10]...), Names: chain(2, all[:10]...)})
	if err := x.DeleteSegment(ctx, seg(1)); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 10, all...)
	put(t, x, Batch{Segment: seg(3), Mark: 1, Blocks: stored(seg(3), all[10:20]...), Names: chain(2, all[:20]...)[10:]})
	probe(t, x, 20, all...)
	for x.Stats().Dead > 0 {
		time.Sleep(time.Millisecond)
	}
	probe(t, x, 20, all...)
	left := 0
	for _, kind := range []byte{kindBlock, kindName} {
		if err := x.read(func(r *reader) error {
			_, err := r.scan([]byte{kind}, 10000, kind, func(_, _ []byte) error { left++; return nil })
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	// Blocks, names, links; one link less where the names came while the rest of the run was being removed: they are a run of their own.
	if left != 20+20+19 && left != 20+20+18 {
		t.Errorf("%d keys left", left)
	}
	if err := x.DeleteSegment(ctx, seg(99)); err != nil {
		t.Error("of a segment that is not known: ", err)
	}
}

// Reads go on while the database is closed and opened again.
func TestReadsDuringRetune(t *testing.T) {
	x := open(t, memOptions())
	all := numbers(0, 500)
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), all...), Names: chain(1, all...)})
	var stop atomic.Bool
	var reads atomic.Int64
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !stop.Load() {
				if n, err := leading(x, keys(all...)); n != 500 || err != nil {
					t.Errorf("probe: %d, %v", n, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	for i := range 8 {
		before := reads.Load()
		if err := x.Retune(context.Background(), 4+i, 1+i); err != nil {
			t.Fatal(err)
		}
		if s := x.Stats(); s.SizeRatio != 4+i || s.Runs != 1+i || s.Retunes != uint64(i+1) {
			t.Errorf("stats: %+v", s)
		}
		for reads.Load() == before && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 600+uint64(i))})
	}
	stop.Store(true)
	readers.Wait()
	if err := x.Retune(context.Background(), 1000, -5); err != nil {
		t.Fatal(err)
	}
	if s := x.Stats(); s.SizeRatio != maxRatio || s.Runs != minRuns {
		t.Errorf("out of bounds: %+v", s)
	}
}

// Everything at once: each writer's own chain is always whole for it, and no
// reader sees half of a batch.
func TestConcurrency(t *testing.T) {
	o := memOptions()
	o.MemTableBytes, o.cleanAfter = 64<<10, 50
	x := open(t, o)
	ctx := context.Background()
	var stop atomic.Bool
	var others, writers sync.WaitGroup
	others.Go(func() {
		for i := 0; !stop.Load(); i++ {
			if err := x.Retune(ctx, 4+i%3, 2+i%5); err != nil {
				t.Error("retune: ", err)
			}
			if err := x.iterate(func(Block) error { return nil }); err != nil {
				t.Error("iterate: ", err)
			}
			x.Stats()
		}
	})
	for w := range uint64(3) {
		writers.Go(func() {
			var probes sync.WaitGroup
			defer probes.Wait()
			for round := range uint64(15) {
				s := seg(w*100 + round)
				all := numbers(w<<32+round*1000, w<<32+round*1000+40)
				for n := 0; n < 40; n += 8 {
					b := Batch{Segment: s, Mark: uint64(n), Blocks: stored(s, all[n:n+8]...), Names: chain(1, all...)[n : n+8]}
					if err := x.PutBatch(ctx, b); err != nil {
						t.Error(err)
						return
					}
					probes.Go(func() {
						if got, err := leading(x, keys(all...)); got%8 != 0 || err != nil {
							t.Errorf("probe of batches of 8: %d, %v", got, err)
						}
					})
					if got, err := leading(x, keys(all...)); got != n+8 || err != nil {
						t.Errorf("probe of one's own: %d of %d, %v", got, n+8, err)
					}
				}
				probes.Wait() // a deletion may come in the middle of one
				if round%2 == 0 {
					if err := x.DeleteSegment(ctx, s); err != nil {
						t.Error(err)
					}
					if got, err := leading(x, keys(all...)); got != 0 || err != nil {
						t.Errorf("probe of what was deleted: %d, %v", got, err)
					}
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	others.Wait()
}

func TestLoad(t *testing.T) {
	x := open(t, memOptions())
	ctx := context.Background()
	bad := errors.New("the source's own")
	err := x.Load(ctx, func(yield func(Batch, error) bool) {
		for n := range uint64(500) {
			if !yield(Batch{Segment: seg(n), Mark: 1, Blocks: stored(seg(n), n), Names: chain(1, numbers(0, 500)...)[n : n+1]}, nil) {
				t.Error("stopped early")
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	probe(t, x, 500, numbers(0, 501)...)
	err = x.Load(ctx, func(yield func(Batch, error) bool) {
		_ = yield(Batch{Segment: seg(500), Mark: 1, Blocks: stored(seg(500), 500), Names: chain(1, numbers(0, 501)...)[500:]}, nil) && yield(Batch{}, bad)
	})
	if !errors.Is(err, bad) {
		t.Error(err)
	}
	probe(t, x, 501, numbers(0, 502)...)
	if err := x.Rebuild(ctx, each()); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 0, numbers(0, 500)...)
}

// TestLoadEndsItsSource: an error ends a source that has more, before Load
// returns.
func TestLoadEndsItsSource(t *testing.T) {
	o := memOptions()
	o.loadBatch = 1
	x := open(t, o)
	ended := false
	err := x.Load(context.Background(), func(yield func(Batch, error) bool) {
		for yield(Batch{Names: make([]Name, 1)}, nil) {
		}
		ended = true
	})
	if !errors.Is(err, ErrBadItem) || !ended {
		t.Errorf("%v; the source has ended: %v", err, ended)
	}
}

func TestClosed(t *testing.T) {
	x := open(t, memOptions())
	ctx := context.Background()
	if err := errors.Join(x.Close(), x.Close()); err != nil {
		t.Fatal(err)
	}
	_, get := x.Get(id(1))
	_, probed := leading(x, keys(1))
	_, segments := x.Segments()
	for i, err := range []error{get, probed, segments, x.PutBatch(ctx, Batch{}), x.Forget(ctx, blockIn(seg(1), 1)), x.DeleteSegment(ctx, seg(1)),
		x.Sync(ctx), x.Retune(ctx, 3, 3), x.Rebuild(ctx, each()), x.iterate(func(Block) error { return nil })} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	x.Stats()
}

func TestContextEndsTheWaitForATurn(t *testing.T) {
	x := open(t, memOptions())
	e, err := x.lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i, err := range []error{x.PutBatch(ctx, Batch{Segment: seg(1)}), x.Forget(ctx, blockIn(seg(1), 1)), x.DeleteSegment(ctx, seg(1)), x.Sync(ctx), x.Retune(ctx, 3, 3)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	e.unlock()
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1)})
}

// A load keeps compactions back, but not when writes come to wait for them.
func TestStallOpensTheGate(t *testing.T) {
	o := memOptions()
	o.MemTableBytes = 64 << 10
	x := open(t, o)
	gate := x.engine.Load().compactions
	gate.Shut()
	all := numbers(0, 200)
	for n := uint64(1); n <= 60; n++ {
		put(t, x, Batch{Segment: seg(n), Mark: 1, Blocks: stored(seg(n), all...), Names: chain(n, all...)})
		if err := x.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if !gate.IsOpen() {
		t.Error("60 runs and no compaction")
	}
	probe(t, x, 200, all...)
}

// TestWriteAmp: what is flushed once and never merged is written once.
func TestWriteAmp(t *testing.T) {
	x := open(t, memOptions())
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 1, 2, 3), Names: chain(1, 1, 2, 3)})
	if err := x.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := x.Stats(); s.WriteAmp != 1 || s.ReadAmp != 1 {
		t.Errorf("write amplification %v, %d runs", s.WriteAmp, s.ReadAmp)
	}
}

// A block is forgotten where it lies, and not where it was moved to meanwhile.
func TestForget(t *testing.T) {
	x := open(t, memOptions())
	ctx := context.Background()
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1, 2, 3), Names: chain(1, 1, 2, 3)})
	put(t, x, Batch{Segment: seg(2), Blocks: stored(seg(2), 1)}) // merged away
	elsewhere := blockIn(seg(1), 2)
	elsewhere.Place.Offset++
	if err := x.Forget(ctx, blockIn(seg(1), 1), elsewhere, blockIn(seg(1), 3), blockIn(seg(1), 9)); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[uint64]Block{1: blockIn(seg(2), 1), 2: blockIn(seg(1), 2)} {
		if b, err := x.Get(id(n)); err != nil || b != want {
			t.Errorf("block %d: %+v, %v; want %+v", n, b, err, want)
		}
	}
	if b, err := x.Get(id(3)); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten: %+v, %v", b, err)
	}
	probe(t, x, 2, 1, 2, 3)
}

// TestBehind: the mark of a segment goes back when the caller asks and hears that another one's copy of a block counts.
func TestBehind(t *testing.T) {
	x := open(t, memOptions())
	marks := func() map[Segment]uint64 {
		all, err := x.Segments()
		if err != nil {
			t.Fatal(err)
		}
		of := map[Segment]uint64{}
		for _, s := range all {
			of[s.Segment] = s.Mark
		}
		return of
	}
	old, young := seg(1), seg(2)
	for _, s := range []Segment{old, young} {
		put(t, x, Batch{Segment: s, Mark: 9, Blocks: stored(s, 1)})
		put(t, x, Batch{Segment: s, Mark: 5})
	}
	if got := marks(); got[old] != 9 || got[young] != 9 {
		t.Errorf("marks %v", got)
	}
	for _, s := range []Segment{old, young} {
		behind := false
		put(t, x, Batch{Segment: s, Mark: 5, Blocks: stored(s, 1), Behind: &behind})
		if behind != (s == old) {
			t.Errorf("%v is behind: %v", s, behind)
		}
	}
	if got := marks(); got[old] != 5 || got[young] != 9 {
		t.Errorf("marks %v once asked", got)
	}
}

// Rows of segments have what was put, and what of it other records have replaced.
func TestCounts(t *testing.T) {
	o := memOptions()
	x := open(t, o)
	states := func() map[uint64]SegmentState {
		t.Helper()
		all, err := x.Segments()
		if err != nil {
			t.Fatal(err)
		}
		m := map[uint64]SegmentState{}
		for _, s := range all {
			m[s.Segment.File] = s
		}
		return m
	}
	wants := func(what string, file, entries, blocks, names, bytes, stale uint64) {
		t.Helper()
		want := SegmentState{Segment: seg(file), Entries: entries, Blocks: blocks, Names: names, Bytes: bytes, Stale: stale}
		if got := states()[file]; got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	first := Batch{Segment: seg(1), Blocks: stored(seg(1), 1, 2, 3), Names: append(chain(5, 1, 2, 3), Name{Key: key(9), Seq: 5, Dropped: true})}
	put(t, x, first)
	wants("put", 1, 7, 3, 3, 600, 0)
	put(t, x, first)
	wants("put again", 1, 14, 3, 3, 600, 0)
	put(t, x, Batch{Segment: seg(2), Blocks: stored(seg(2), 1), Names: chain(5, 1)})
	wants("moved away", 1, 14, 3, 3, 600, 1)
	wants("moved here", 2, 2, 1, 1, 100, 0)
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1), Count: true})
	if b, err := x.Get(id(1)); err != nil || b.Place.Segment != seg(1) {
		t.Errorf("counts there: %+v, %v", b, err)
	}
	wants("counts there", 1, 15, 3, 3, 600, 1)
	put(t, x, Batch{Segment: seg(2), Blocks: stored(seg(2), 1), Count: true})
	wants("and here", 2, 3, 1, 1, 100, 0)
	put(t, x, Batch{Segment: seg(3), Names: []Name{{Key: key(2), Seq: 6, Dropped: true}, {Key: key(9), ID: id(1), Seq: 6}}})
	wants("withdrawn elsewhere", 1, 15, 3, 3, 600, 2)
	wants("a withdrawal, and a name that was withdrawn", 3, 2, 0, 1, 0, 0)
	put(t, x, Batch{Segment: seg(1), Names: []Name{{Key: key(3), ID: id(3), Seq: 7}, {Key: key(9), ID: id(1), Seq: 5}}})
	wants("replaced in the same segment, and older than what is there", 1, 17, 3, 5, 600, 4)
	check := func(what string) {
		t.Helper()
		wants(what, 1, 17, 3, 5, 600, 4)
		wants(what, 2, 3, 1, 1, 100, 0)
		wants(what, 3, 2, 0, 1, 0, 0)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = open(t, o)
	check("reopened")
	if err := x.DeleteSegment(context.Background(), seg(1)); err != nil {
		t.Fatal(err)
	}
	put(t, x, Batch{Segment: seg(2), Names: []Name{{Key: key(3), ID: id(3), Seq: 1}}})
	wants("replaces a record of a segment that is gone", 2, 4, 1, 2, 100, 0)
	if _, there := states()[1]; there {
		t.Error("a deleted segment comes back")
	}
}

// Many blocks are found by their ids, and nothing of it is in Stats.
func TestBlocks(t *testing.T) {
	x := open(t, memOptions())
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1, 2)})
	put(t, x, Batch{Segment: seg(2), Blocks: stored(seg(2), 3)})
	if err := x.DeleteSegment(context.Background(), seg(2)); err != nil {
		t.Fatal(err)
	}
	before := x.Stats()
	dst := make([]Block, 5)
	dst[1].Info.Size = 77
	n, err := x.Blocks([]block.ID{id(2), {}, id(9), id(3), id(1)}, dst)
	if want := []Block{blockIn(seg(1), 2), {}, {}, {}, blockIn(seg(1), 1)}; n != 2 || err != nil || !slices.Equal(dst, want) {
		t.Errorf("%d, %v: %+v", n, err, dst)
	}
	if s := x.Stats(); s.Hits != before.Hits || s.Misses != before.Misses || s.Points != before.Points || s.Absent != before.Absent {
		t.Errorf("counted: %+v", s)
	}
	if _, err := x.Blocks([]block.ID{id(1)}, nil); !errors.Is(err, ErrBadItem) {
		t.Error(err)
	}
}
