package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// TestNames: records with their notes are found by chain and by walking, through
// a move of their blocks, a retune and a restart; withdrawn ones are told of.
func TestNames(t *testing.T) {
	o := memOptions()
	o.Now = func() time.Time { return time.Unix(1000, 0) }
	x := open(t, o)
	names := chain(5, numbers(0, 2000)...)
	for i := range names {
		names[i].Note = fmt.Sprint("note ", i)
	}
	names[7].Expires = time.Unix(10, 0)
	spaces := []Space{{Text: "a model"}, {Text: "another", Seq: 5, Layout: block.Layout{Bytes: 9, KeyBytes: 4, Tokens: 16, DType: "bf16"}}}
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), numbers(0, 2000)...), Names: names, Spaces: spaces})
	put(t, x, Batch{Segment: seg(2), Mark: 1, Names: []Name{{Key: key(3), Seq: 9, Dropped: true}}})
	put(t, x, Batch{Segment: seg(3), Mark: 1, Blocks: stored(seg(3), numbers(10, 20)...)}) // merged away
	check := func() {
		t.Helper()
		entries := make([]Entry, 2001)
		n, err := x.FindBatch(append(keys(numbers(0, 2000)...), key(77777)), entries)
		if err != nil || n != 1998 {
			t.Fatalf("%d found, %v", n, err)
		}
		for i, e := range entries[:2000] {
			in := seg(1)
			if i >= 10 && i < 20 {
				in = seg(3)
			}
			switch {
			case i == 3:
				if !e.Name.Dropped || e.Name.Seq != 9 || e.Segment != seg(2) || !e.Block.Info.ID.IsZero() || e.Name.Note != "" {
					t.Errorf("withdrawn: %+v", e)
				}
			case e.Name.Key != key(uint64(i)) || e.Name.Note != fmt.Sprint("note ", i) || e.Segment != seg(1):
				t.Errorf("name %d: %+v", i, e)
			case i == 7:
				if !e.Block.Info.ID.IsZero() {
					t.Error("an expired name leads to a block")
				}
			case e.Block.Info.ID != id(uint64(i)) || e.Block.Place.Segment != in || e.Name.Depth != uint32(i):
				t.Errorf("block %d: %+v", i, e)
			}
		}
		if entries[2000] != (Entry{}) {
			t.Errorf("of a name that is not there: %+v", entries[2000])
		}
		seen := map[string]bool{}
		if err := x.Names(func(e Entry) error { seen[e.Name.Note] = true; return nil }); err != nil || len(seen) != 1998 || seen["note 3"] || seen["note 7"] {
			t.Errorf("a walk sees %d names, %v", len(seen), err)
		}
		stop := errors.New("stop")
		if err := x.Names(func(Entry) error { return stop }); err != stop {
			t.Errorf("a walk that is ended: %v", err)
		}
		if s, err := x.Space(NamespaceOf("another")); err != nil || s != spaces[1] {
			t.Errorf("%+v, %v", s, err)
		}
		if _, err := x.Space(NamespaceOf("a third")); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		if all, err := x.Spaces(); err != nil || len(all) != 2 || !slices.Contains(all, spaces[0]) || !slices.Contains(all, spaces[1]) {
			t.Errorf("%+v, %v", all, err)
		}
	}
	check()
	before := x.Stats()
	if before.Hits != 1998 || before.Scanned != 2000 { // a withdrawn name and an expired one lie among the others
		t.Errorf("%d hits, %d entries in ranges", before.Hits, before.Scanned)
	}
	if _, _, err := x.Find(key(50)); err != nil {
		t.Fatal(err)
	}
	if after := x.Stats(); after.Hits != before.Hits+1 || after.Scanned != before.Scanned {
		t.Errorf("a point look-up: %d and %d", after.Hits-before.Hits, after.Scanned-before.Scanned)
	}
	if err := x.Retune(context.Background(), 4, 2); err != nil {
		t.Fatal(err)
	}
	check()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = open(t, o)
	check()
	if _, err := x.FindBatch(keys(1, 2), make([]Entry, 1)); !errors.Is(err, ErrBadItem) {
		t.Error(err)
	}
	if err := x.PutBatch(context.Background(), Batch{Segment: seg(4), Names: []Name{{Key: key(1), Note: strings.Repeat("x", maxNote+1)}}}); !errors.Is(err, ErrBadItem) {
		t.Error(err)
	}
}

// TestOneProcess: an index that is open is nobody else's, and comes to no harm.
func TestOneProcess(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	x := open(t, o)
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1), Names: chain(5, 1)})
	if _, err := Open(o); !errors.Is(err, ErrUnavailable) {
		t.Errorf("opened twice: %v", err)
	}
	if err := x.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 1, 1)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = open(t, o)
	probe(t, x, 1, 1)
}

// TestStrays: names that do not come with their block are found from its id while
// they count.
func TestStrays(t *testing.T) {
	o := memOptions()
	o.Now = func() time.Time { return time.Unix(1000, 0) }
	x := open(t, o)
	ctx := context.Background()
	put(t, x, Batch{Segment: seg(1), Blocks: stored(seg(1), 1, 2, 3), Names: chain(1, 1, 2, 3)})
	alias := func(n, of, seq uint64) Name { return Name{Key: key(n), ID: id(of), Seq: seq, Note: fmt.Sprint(n)} }
	expired := alias(15, 1, 2)
	expired.Expires = time.Unix(10, 0)
	put(t, x, Batch{Segment: seg(2), Names: []Name{alias(10, 1, 2), alias(11, 1, 2), alias(12, 1, 2), alias(13, 1, 2), alias(14, 2, 2), expired}})
	put(t, x, Batch{Segment: seg(3), Blocks: stored(seg(3), 4), Names: []Name{
		alias(4, 4, 3), alias(40, 4, 3), // both with their block
		alias(11, 2, 3), {Key: key(12), Seq: 3, Dropped: true}, alias(16, 1, 3),
	}})
	put(t, x, Batch{Segment: seg(4), Names: []Name{alias(13, 1, 4)}}) // merged away
	wants := func(what string, want ...[]uint64) {
		t.Helper()
		all, err := x.Strays([]block.ID{id(1), id(2), id(3), id(4), id(99)})
		if err != nil || len(all) != 5 {
			t.Fatalf("%s: %d, %v", what, len(all), err)
		}
		for i, entries := range all {
			var got []string
			for _, e := range entries {
				got = append(got, e.Name.Note)
				if e.Block != blockIn(e.Block.Place.Segment, uint64(i+1)) {
					t.Errorf("%s: %+v", what, e)
				}
			}
			var keys []string
			for _, n := range want[i] {
				keys = append(keys, fmt.Sprint(n))
			}
			slices.Sort(got)
			if !slices.Equal(got, keys) {
				t.Errorf("%s, block %d: strays %v, want %v", what, i+1, got, keys)
			}
		}
	}
	left := func(want int) {
		t.Helper()
		n := 0
		if err := x.read(func(r *reader) error {
			_, err := r.scan([]byte{kindStray}, 1000, kindStray, func(_, _ []byte) error { n++; return nil })
			return err
		}); err != nil || n != want {
			t.Errorf("%d stray keys, %v; want %d", n, err, want)
		}
	}
	wants("put", []uint64{10, 13, 16}, []uint64{11, 14}, nil, nil, nil)
	left(8) // one of them of a name that is another's, one of a withdrawn one
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = open(t, o)
	wants("reopened", []uint64{10, 13, 16}, []uint64{11, 14}, nil, nil, nil)
	if err := x.DeleteSegment(ctx, seg(2)); err != nil {
		t.Fatal(err)
	}
	wants("a segment deleted", []uint64{13, 16}, []uint64{11}, nil, nil, nil)
	if err := x.clean(); err != nil {
		t.Fatal(err)
	}
	wants("cleaned", []uint64{13, 16}, []uint64{11}, nil, nil, nil)
	left(3)
	put(t, x, Batch{Segment: seg(5), Blocks: stored(seg(5), 4)}) // its names stay behind
	all, err := x.Strays([]block.ID{id(4)})
	if err != nil || len(all[0]) != 1 || all[0][0].Name.Key != key(4) || all[0][0].Block != blockIn(seg(5), 4) {
		t.Errorf("of a block that moved alone: %+v, %v", all, err)
	}
}

// TestWithdrawalReadAgain: a withdrawal that a merge has moved is read again where it was, after a crash, and then that file
// goes: the copy in the file of the merge still counts, with what it hides.
func TestWithdrawalReadAgain(t *testing.T) {
	x := open(t, memOptions())
	n := NamespaceOf("ns").Name(block.Sum(block.Bits128, []byte("x")), block.Name{Namespace: "ns", Key: "k", Seq: 5})
	drop := Name{Key: n.Key, Seq: 9, Dropped: true}
	was, merged := Segment{Incarnation: 3, File: 6}, Segment{Incarnation: 4, File: 9}
	for _, b := range []Batch{
		{Segment: Segment{Rank: 2, Incarnation: 7}, Names: []Name{n}},
		{Segment: was, Names: []Name{drop}}, {Segment: merged, Names: []Name{drop}}, {Segment: was, Names: []Name{drop}},
	} {
		if err := x.PutBatch(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.DeleteSegment(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	e := make([]Entry, 1)
	if _, err := x.PeekBatch([]Key{n.Key}, e); err != nil || e[0].Segment != merged || !e[0].Name.Hides || !e[0].Name.Dropped {
		t.Errorf("%+v, %v", e[0], err)
	}
}
