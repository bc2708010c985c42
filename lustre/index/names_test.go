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
