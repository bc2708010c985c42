package lustre

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// leaveCopy has rank 0 inherit a block of rank 1 and merge it to a file of its own, and leaves its only name, "alias", in a part
// that is still rank 1's.
func (r *runs) leaveCopy() (id block.ID) {
	r.Helper()
	first := tiers.Part{Rank: 1, Incarnation: 3}
	id = r.nameLater()
	r.withdraw("b", 210)
	r.must(r.Sync(r.Context()))
	r.inherit(first)
	r.merge()
	r.until("the file of the part is gone", func() bool {
		_, err := os.Stat(filepath.Join(r.dir, segment.Path(first, 0)))
		return os.IsNotExist(err)
	})
	r.wantNames("alias", "c")
	return id
}

// filesOf are the files that a rank left.
func (r *runs) filesOf(rank int) []string {
	files, err := filepath.Glob(filepath.Join(r.dir, fmt.Sprintf("rank%03d-*", rank), "*.bin"))
	r.must(err)
	return files
}

// beginAlone starts the next run of rank 0 without its index, as a store does that knows no names but those
// that it reads: what it may not evict is returned.
func (r *runs) beginAlone(incarnation uint64) (wanted []block.ID) {
	r.Helper()
	r.end()
	r.must(os.RemoveAll(r.local))
	var dead []block.ID
	r.open(0, incarnation)
	r.must(r.Recover(func(e tiers.Entry) error {
		switch {
		case e.Info.ID.IsZero() || len(e.Names) > 0:
		case e.Wanted:
			wanted = append(wanted, e.Info.ID)
		default:
			dead = append(dead, e.Info.ID)
		}
		return nil
	}))
	for _, id := range dead {
		r.must(r.Evict(id))
	}
	return wanted
}

// TestNamedElsewhere: a run that begins without an index does not know which names stand for what it has until a round has
// read all that others left. A block that no name stands for then is nobody's.
func TestNamedElsewhere(t *testing.T) {
	r := newRuns(t)
	id := r.leaveCopy()
	wanted := r.beginAlone(10)
	if !slices.Equal(wanted, []block.ID{id}) {
		t.Errorf("wanted are %v, want %v", wanted, id)
	}
	if nobodys, err := r.Nobodys(wanted); err == nil && len(nobodys) > 0 {
		t.Errorf("before a round %v are nobody's", nobodys)
	}
	r.merge()
	for _, path := range r.filesOf(1) {
		r.must(os.Rename(path, path+".away"))
		r.must(os.WriteFile(path, []byte("no segment"), 0o600))
	}
	r.round()
	if nobodys, err := r.Nobodys(wanted); !errors.Is(err, tiers.ErrNotNow) {
		t.Errorf("while files cannot be read %v are nobody's: %v", nobodys, err)
	}
	for _, path := range r.filesOf(1) {
		r.must(os.Rename(path+".away", path))
	}
	r.round()
	r.wantNames("alias", "c")
	nobodys, err := r.Nobodys(wanted)
	r.must(err)
	if len(nobodys) > 0 {
		t.Errorf("%v are nobody's", nobodys)
	}
	r.withdraw("alias", 300)
	nobodys, err = r.Nobodys(wanted)
	r.must(err)
	if !slices.Equal(nobodys, []block.ID{id}) {
		t.Errorf("nobody's are %v, want %v", nobodys, id)
	}
}

// TestNamedOutOfSight: a block that a name in another part stands for is not nobody's when that part is looked at no more, as when its rank is
// back: the name stands for it yet.
func TestNamedOutOfSight(t *testing.T) {
	r := newRuns(t)
	r.leaveCopy()
	wanted := r.beginAlone(10)
	r.round()
	for range 3 {
		nobodys, err := r.Nobodys(wanted)
		r.must(err)
		if len(nobodys) > 0 {
			t.Fatalf("%v are nobody's", nobodys)
		}
		_, err = r.Tier.Catalogue().AdoptParts(r.Context(), nil, nil)
		r.must(err)
	}
}
