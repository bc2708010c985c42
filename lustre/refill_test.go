package lustre

import (
	"errors"
	"os"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// ownLists names the directories of rank 0.
const ownLists = "rank000"

// leaveLink leaves a file of run 1 that has names alone, of a block in another spilled file,
// and a part of rank 1 that the catalogue has not seen, and begins run 2 without a round.
func (r *runs) leaveLink() (left string) {
	r.Helper()
	r.begin(0, 1)
	r.round()
	id := r.put("a", 10)
	r.put("b", 20)
	left = r.leaveWithdrawal(func() { r.must(r.Link(id, block.Name{Namespace: "ns", Key: "c", Seq: 100})) })
	r.end()
	r.begin(1, 7)
	r.put("other", 10)
	r.end()
	r.begin(0, 2)
	return left
}

// breakIndex has the index break.
func (r *runs) breakIndex() {
	r.Helper()
	r.must(os.RemoveAll(r.local))
	all, err := r.Parts(r.Context())
	r.must(err)
	others := slices.DeleteFunc(all, func(p tiers.Part) bool { return p.Rank == 0 })
	if _, err := r.Tier.Catalogue().AdoptParts(r.Context(), others, nil); err == nil || r.Tier.Catalogue().Err() == nil {
		r.Fatalf("a round without a disk: %v", err)
	}
	r.must(os.MkdirAll(r.local, 0o700))
}

// beginAnew has a round begin the index anew and find no file of this rank for it.
func (r *runs) beginAnew() {
	r.Helper()
	r.fs.Add(vfstest.Rule{Op: vfs.OpReadDir, Path: ownLists, Err: vfs.ErrIO})
	r.round()
	r.fs.Clear()
	r.must(r.Tier.Catalogue().Err())
}

func (r *runs) wantNames(keys ...string) {
	r.Helper()
	for i, f := range r.Tier.Catalogue().Find("ns", keys) {
		if f.Info.ID.IsZero() {
			r.Errorf("the name %s is lost", keys[i])
		}
	}
}

// TestLinksWhileTheIndexIsFilled: a file of names alone is not taken for one of withdrawals
// while the index is broken, or does not have it yet, and no name is lost.
func TestLinksWhileTheIndexIsFilled(t *testing.T) {
	r := newRuns(t)
	left := r.leaveLink()
	wasted := func(when string) {
		t.Helper()
		files := r.Spilled()
		if len(files) < 2 || slices.ContainsFunc(files, func(f tiers.SpilledFile) bool { return f.Wasted }) {
			t.Errorf("%s: %+v, want files of which none is in the way", when, files)
		}
		r.merge()
	}
	wasted("before the first round")
	r.breakIndex()
	wasted("broken")
	r.beginAnew()
	wasted("begun anew")
	r.round()
	wasted("full")
	if !r.there(left) {
		t.Error("the file of names is gone")
	}
	r.wantNames("a", "b", "c")
	r.next(3)
	r.round()
	r.wantNames("a", "b", "c")
}

// TestReloadWhileTheIndexIsFilled: what its names are worth is not known then. The file stays
// spilled, and the error says that it is a matter of time.
func TestReloadWhileTheIndexIsFilled(t *testing.T) {
	r := newRuns(t)
	r.leaveLink()
	r.breakIndex()
	r.beginAnew()
	files := r.Spilled()
	for _, f := range files {
		err := r.Reload(r.Context(), f, func(e tiers.Entry) error {
			t.Errorf("entry %+v", e)
			return nil
		})
		if !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, tiers.ErrNotNow) {
			t.Errorf("%s is reloaded: %v", f.Path, err)
		}
	}
	if got := r.Spilled(); len(got) != len(files) || len(got) < 2 {
		t.Errorf("spilled %+v, were %+v", got, files)
	}
	r.round()
	keys := map[string]bool{}
	for _, f := range files {
		r.must(r.Reload(r.Context(), f, func(e tiers.Entry) error {
			for _, n := range e.Names {
				keys[n.Key] = true
			}
			return nil
		}))
	}
	if !keys["a"] || !keys["b"] || !keys["c"] {
		t.Errorf("their names are %v", keys)
	}
}
