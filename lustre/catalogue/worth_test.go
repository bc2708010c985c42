package catalogue

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// TestWorthOfWithdrawals: one counts alone if it is sure that it hides nothing of another part.
func TestWorthOfWithdrawals(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 1, 100)
	r.round()
	drop := func(n int, seq uint64) format.Record {
		return format.Record{Dropped: true, Name: block.Name{Namespace: "model", Key: key(n), Seq: seq}}
	}
	hides, alone, unknown, outdated := drop(0, 200), drop(1, 200), drop(2, 200), drop(1, 150)
	err := errors.Join(r.store.Unlink(block.ID{}, hides.Name), r.store.Unlink(block.ID{}, alone.Name), r.store.Sync(ctx))
	all, listed := r.store.Parts(ctx)
	own := slices.IndexFunc(all, func(p tiers.Part) bool { return p.Rank == 0 })
	if err := errors.Join(err, listed, r.Wrote(ctx, all[own], 0, segment.Contents{Names: []format.Record{hides, alone}})); err != nil {
		t.Fatal(err)
	}
	want := func(when string, ofAlone segment.Worth) {
		t.Helper()
		got, err := r.Worth([]format.Record{hides, alone, unknown, outdated})
		if want := []segment.Worth{segment.Hiding, ofAlone, segment.Hiding, segment.Outdated}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	want("all was read", segment.Counting)
	r.leave(2, 1, 2, 100)
	files, _ := filepath.Glob(filepath.Join(r.dir, "rank002-*", "*.bin"))
	if err := os.WriteFile(files[0], []byte("no segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.round(); len(got.Skipped) != 1 {
		t.Errorf("%+v", got)
	}
	want("a file could not be read", segment.Hiding)
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	r.round()
	want("it is gone", segment.Counting)

	mine := filepath.Join(r.dir, filepath.Dir(segment.Path(all[own], 0)))
	if err := errors.Join(os.Rename(mine, mine+".away"), os.WriteFile(mine, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := r.round(); len(got.Skipped) != 0 {
		t.Errorf("%+v", got)
	}
	want("an own directory cannot be listed", segment.Hiding)
	if err := errors.Join(os.Remove(mine), os.Rename(mine+".away", mine)); err != nil {
		t.Fatal(err)
	}
	r.round()
	want("it can be", segment.Counting)

	r.restart()
	want("no round has looked", segment.Hiding)
	r.round()
	want("one has", segment.Counting)
}

// TestWhole: what was looked for is not known to be missing if the index was begun anew, and
// even if it is full again.
func TestWhole(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 4, 100)
	looked := 0
	look := func() error { looked++; return nil }
	if err := r.Whole(look); err != nil || looked != 1 {
		t.Errorf("an index that is full: %v", err)
	}
	failed := errors.New("for the test")
	if err := r.Whole(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("a look that fails: %v", err)
	}
	err := r.Whole(func() error {
		if err := os.RemoveAll(r.local); err != nil {
			t.Fatal(err)
		}
		all, _ := r.store.Parts(ctx)
		if _, err := r.AdoptParts(ctx, all, nil); err == nil {
			t.Fatal("a round without a disk")
		}
		if err := os.MkdirAll(r.local, 0o700); err != nil {
			t.Fatal(err)
		}
		r.round()
		return r.Err()
	})
	if !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, tiers.ErrNotNow) {
		t.Errorf("begun anew and filled meanwhile: %v", err)
	}
	if err := r.Whole(look); err != nil {
		t.Errorf("filled: %v", err)
	}
}
