package others

import (
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// manyNames is a catalogue of two namespaces, whose first half is never at its end.
type manyNames struct {
	*parttest.Catalogue
	calls int
}

func (m *manyNames) ScanOwn(_ string, _ bool, _ uint64, fn func(tiers.Found) bool) (uint64, error) {
	for more := true; more; m.calls++ {
		more = fn(tiers.Found{Info: block.Info{Size: size}, Name: block.Name{Namespace: []string{"a", "b"}[m.calls%2], Key: "k"}})
	}
	return 1 << 63, nil
}

// TestOwnNamesAreEstimated: of more names than can be counted in time the rest is
// estimated, and the next caller has the same count. One of a clearing is counted anew.
func TestOwnNamesAreEstimated(t *testing.T) {
	r := newRank(t)
	if r.OwnNames() != nil {
		t.Error("names of files are counted where nothing is spilled")
	}
	r.Mu.Lock()
	r.Cold.SpillLocked()
	r.Mu.Unlock()
	many := &manyNames{Catalogue: r.known}
	r.Catalogue = many
	c := r.OwnNames()
	sum := c.Spaces["a"].Names + c.Spaces["b"].Names
	if !c.Estimate || sum != 2*many.calls || c.Spaces["a"].Bytes != int64(c.Spaces["a"].Names*size) {
		t.Errorf("%+v of half of the names, which were %d", c, many.calls)
	}
	if r.OwnNames() != c {
		t.Error("the next caller counts again")
	}
	r.Mu.Lock()
	r.InvalidateAllLocked("a", false, r.TickLocked())
	r.Mu.Unlock()
	if r.OwnNames() == c {
		t.Error("a count from before a clearing is kept")
	}
}
