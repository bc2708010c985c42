package lustre

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
)

// TestPutAgainAfterARound: a block leaves the tier, as one does that is taken into memory for want of room, a round
// goes by, and it is put again under the name that it had, which is not a later one. The name is found, and so by the
// next run.
func TestPutAgainAfterARound(t *testing.T) {
	for _, others := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("an older name elsewhere %v, index lost %v", others, lost), func(t *testing.T) {
				r := newRuns(t)
				if others {
					r.begin(1, 7)
					r.put("a", 10)
					r.end()
				}
				r.begin(0, 9)
				r.round()
				r.withdraw("a", 20) // as a store does for what the catalogue alone has
				id := r.put("a", 20)
				r.put("b", 30)
				r.put("c", 40)
				r.must(r.Evict(id))
				r.round()
				r.must(r.Sync(r.Context()))
				r.put("a", 20)
				r.wantNames("a", "b", "c")
				r.end()
				if lost {
					r.must(os.RemoveAll(r.local))
				}
				r.begin(0, 10)
				r.round()
				r.wantNames("a", "b", "c")
			})
		}
	}
}

// TestEvictedNamesHideOlderOnes: a block is evicted, and the file in which it was goes. The name that an ended run
// gave other bytes before does not come back.
func TestEvictedNamesHideOlderOnes(t *testing.T) {
	r := newRuns(t)
	r.begin(1, 7)
	r.put("a", 10)
	r.put("b", 11)
	r.end()
	r.begin(0, 9)
	r.round()
	r.withdraw("a", 20) // as a store does for what the catalogue alone has
	id, other := r.put("a", 20), r.put("c", 30)
	left := r.files(9)[0]
	r.put("d", 40)
	r.must(r.Evict(id))
	r.must(r.Evict(other))
	r.round()
	r.merge()
	r.until("the file of the evicted block is gone", func() bool { return !r.there(left) })
	for run, lost := range []bool{false, true} {
		r.end()
		if lost {
			r.must(os.RemoveAll(r.local))
		}
		r.begin(0, uint64(10+run))
		for range 2 {
			r.round()
			r.merge()
		}
		if got := r.Tier.Catalogue().Find("ns", []string{"a"}); !got[0].Info.ID.IsZero() {
			t.Errorf("index lost %v: an outdated name is found: %+v", lost, got[0])
		}
		r.wantNames("b", "d")
	}
}

// TestNothingGoesWhileFilesAreRead: a file of which all blocks were put again has the name of a block that comes
// later, in a part that the rank inherits. A start that reads all files has it stay.
func TestNothingGoesWhileFilesAreRead(t *testing.T) {
	r := newRuns(t)
	r.begin(1, 7)
	id := r.put("a", 10)
	r.put("b", 11)
	r.end()
	r.begin(0, 9)
	r.round()
	r.inherit(inherited)
	again := []block.ID{r.put("x", 20), r.put("y", 30)}
	left := r.files(9)[0]
	r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 40}))
	r.must(r.Sync(r.Context()))
	for _, id := range again {
		r.must(r.Evict(id))
	}
	r.put("x", 20)
	r.put("y", 30)
	r.put("z", 50)
	r.put("last", 60)
	r.end()
	r.must(os.RemoveAll(r.local))
	files := r.files(9)
	answer := make(chan struct{})
	r.fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: filepath.Base(files[len(files)-1]), Block: answer})
	time.AfterFunc(100*time.Millisecond, func() { close(answer) })
	r.begin(0, 10)
	r.fs.Clear()
	if !r.there(left) {
		t.Error("a file with a name is gone")
	}
	r.round()
	r.inherit(inherited)
	r.wantNames("a", "b", "alias", "x", "y", "z", "last")
}

// TestPutAgainInAnOlderFile: a block is merged to a new file, leaves it, and is put again in the file that takes frames,
// which was begun before. Once the merge's file is gone, the block is found where it is, by the next run too.
func TestPutAgainInAnOlderFile(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("index lost ", lost), func(t *testing.T) {
			r := newRuns(t)
			r.begin(0, 9)
			r.round()
			a, dead := r.put("a", 10), []block.ID{r.put("", 1)}
			b := r.put("b", 20)
			dead = append(dead, r.put("", 2))
			r.put("c", 30)
			for _, id := range dead {
				r.must(r.Evict(id))
			}
			r.merge()
			at, err := r.Segment(a)
			r.must(err)
			left := filepath.Join(r.dir, at.Path)
			r.must(r.Evict(a))
			r.put("a", 10)
			r.must(r.Unlink(b, block.Name{Namespace: "ns", Key: "b", Seq: 40}))
			r.must(r.Evict(b))
			r.put("d", 50)
			r.merge() // the record of a that counts was there
			r.until("the merge's file is gone", func() bool { return !r.there(left) })
			r.end()
			if lost {
				r.must(os.RemoveAll(r.local))
			}
			r.begin(0, 10)
			r.round()
			r.wantNames("a", "c", "d")
			r.spillAll()
			r.wantNames("a", "c", "d")
		})
	}
}
