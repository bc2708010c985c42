package lustre

import (
	"fmt"
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

// TestEvictedThenInherited: a rank evicts its own copy of a block, and inherits one. Once the file of the first is
// gone, the block is found where the other lies, though only the catalogue has that by then.
func TestEvictedThenInherited(t *testing.T) {
	r := newRuns(t)
	part := tiers.Part{Rank: 1, Incarnation: 7}
	r.begin(1, 7)
	r.put("a", 10)
	r.put("b", 20)
	r.end()
	r.begin(0, 9)
	r.round()
	id := r.put("a", 10)
	left := r.files(9)[0]
	r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
	r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "alias", Seq: 110}))
	r.must(r.Evict(id))
	_, err := r.AdoptOrphan(r.Context(), part, func(tiers.Entry) error { return nil })
	r.must(err)
	for i := range 6 {
		r.put(fmt.Sprint("x", i), uint64(2000+10*i))
	}
	r.merge()
	r.until("the file of the evicted copy is gone", func() bool {
		_, err := os.Stat(left)
		return os.IsNotExist(err)
	})
	r.spillAll()
	r.wantNames("a", "b", "x0")
	r.next(12)
	r.round()
	r.wantNames("a", "b", "x0")
}

// TestAliasesOfInheritedBlocks: a block of an inherited part gets another name, and the rank is killed. The name is
// found once its next run has the part too, also when it has lost its index.
func TestAliasesOfInheritedBlocks(t *testing.T) {
	for name, lost := range map[string]bool{"with its index": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			part := tiers.Part{Rank: 1, Incarnation: 7}
			adopt := func() {
				_, err := r.AdoptOrphan(r.Context(), part, func(tiers.Entry) error { return nil })
				r.must(err)
			}
			r.begin(1, 7)
			id := r.put("a", 10)
			r.put("b", 20)
			r.end()
			r.begin(0, 9)
			r.round()
			adopt()
			r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
			r.must(r.Sync(r.Context()))
			r.end()
			if lost {
				r.must(os.RemoveAll(r.local))
			}
			r.begin(0, 10)
			r.merge()
			r.must(r.Sync(r.Context()))
			r.round()
			adopt()
			r.merge()
			r.wantNames("a", "alias")
			r.next(11)
			adopt()
			r.round()
			r.wantNames("a", "alias")
		})
	}
}
