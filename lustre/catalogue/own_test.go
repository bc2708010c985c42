package catalogue

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// TestPlaces: the blocks of a file are looked for in the order in which the index has them,
// each once, whatever order they come in.
func TestPlaces(t *testing.T) {
	const n = 3 * judgeStep / 2
	r := newRig(t)
	p := tiers.Part{Rank: 0, Incarnation: 1}
	var all segment.Contents
	for i := range n {
		all.Blocks = append(all.Blocks, segment.Stored{
			Info: block.Info{ID: block.Sum(block.Bits128, data(i)), Size: 100},
			At:   tiers.Segment{Path: segment.Path(p, 5), Offset: int64(4096 * (i + 1)), Stored: 100},
		})
	}
	there := all
	there.Blocks = all.Blocks[1:]
	if err := r.Wrote(ctx, p, 5, there); err != nil {
		t.Fatal(err)
	}
	var last block.ID
	calls := 0
	err := r.places(all.Blocks, func(it segment.Stored, at index.Block) {
		if calls++; bytes.Compare(it.Info.ID[:], last[:]) <= 0 {
			t.Errorf("%v comes after %v", it.Info.ID, last)
		}
		last = it.Info.ID
		switch is := at.Info.ID; {
		case it == all.Blocks[0] && !is.IsZero():
			t.Errorf("%v was never put, and lies at %+v", it.Info.ID, at)
		case it != all.Blocks[0] && (is != it.Info.ID || at.Place.Offset != it.At.Offset):
			t.Errorf("%v lies at %+v, want %d", it.Info.ID, at, it.At.Offset)
		}
	})
	if err != nil || calls != n {
		t.Errorf("%d calls for %d blocks, %v", calls, n, err)
	}
	if first := all.Blocks[0].Info.ID; first != block.Sum(block.Bits128, data(0)) {
		t.Error("what was passed has another order now")
	}
}

// TestNamesOfOtherFiles: of a name whose block lies in another file it is said which block that is: a rank that has both knows them for its own.
func TestNamesOfOtherFiles(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 1, 10)
	one := item(0, data(0), 10)
	s := r.rank(1)
	more := block.Name{Namespace: "model", Key: "more", Seq: 20}
	if err := errors.Join(s.Link(one.Info.ID, more), s.Sync(ctx)); err != nil {
		t.Fatal(err)
	}
	r.closed(s)
	parts, err := r.store.Parts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	parts = slices.DeleteFunc(parts, func(p tiers.Part) bool { return p.Rank == 0 })
	got := map[string]block.Info{}
	if _, err := r.AdoptParts(ctx, parts, func(found []tiers.Found) {
		for _, f := range found {
			got[f.Name.Key] = f.Info
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got[key(0)] != one.Info || got["more"].ID != one.Info.ID {
		t.Errorf("%+v", got)
	}
}
