package lustre

import (
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// TestMergesOfALaterPart: a rank inherits a part of a run that began after its own, and merges it. The copies count
// for all, so that the files of the part go, and what is named there since is found: also when its file is spilled,
// and by the next run.
func TestMergesOfALaterPart(t *testing.T) {
	for name, alias := range map[string]bool{"as it was": false, "under another name": true} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			later := tiers.Part{Rank: 1, Incarnation: 7}
			r.begin(1, 7)
			id, other := r.put("a", 10), r.put("b", 20)
			r.end()
			r.begin(0, 1)
			r.round()
			_, err := r.AdoptOrphan(r.Context(), later, func(tiers.Entry) error { return nil })
			r.must(err)
			r.must(r.Unlink(other, block.Name{Namespace: "ns", Key: "b", Seq: 100}))
			r.must(r.Evict(other))
			r.must(r.Sync(r.Context()))
			r.merge()
			want := "a"
			if alias {
				want = "alias"
				r.must(r.Link(id, block.Name{Namespace: "ns", Key: want, Seq: 200}))
				r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "a", Seq: 300}))
				r.must(r.Sync(r.Context()))
			}
			for i := range 3 {
				r.put("x", uint64(2000+i))
				r.round()
				r.merge()
			}
			r.until("the file of the part is gone", func() bool {
				_, err := os.Stat(filepath.Join(r.dir, segment.Path(later, 0)))
				return os.IsNotExist(err)
			})
			r.wantNames(want)
			r.spillAll()
			r.wantNames(want)
			r.next(9)
			r.wantNames(want)
		})
	}
}

// TestOwnCopiesStay: what a rank has in a file of its own, which only the catalogue knows, is found when a copy of a run that
// began later is gone.
func TestOwnCopiesStay(t *testing.T) {
	r := newRuns(t)
	r.begin(1, 7)
	r.put("a", 10)
	r.end()
	r.begin(0, 1)
	r.put("a", 10)
	r.put("b", 20)
	r.put("c", 30) // the file of a is done
	r.must(r.Sync(r.Context()))
	r.spillAll()
	r.round()
	r.wantNames("a", "b")
	r.must(os.RemoveAll(filepath.Join(r.dir, filepath.Dir(segment.Path(tiers.Part{Rank: 1, Incarnation: 7}, 0)))))
	r.round()
	r.wantNames("a", "b")
}
