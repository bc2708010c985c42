package cascade

import (
	"slices"
	"testing"
	"time"
)

// boundBelow is a rank with a name "b" that is bound to "a", which is in a file alone.
func boundBelow(t *testing.T, expires time.Duration) *world {
	t.Helper()
	w := newWorld(t)
	e := ns("a")
	if expires > 0 {
		e.Expires = w.now().Add(expires)
	}
	w.r.put(e, data(1, modelBlock))
	w.spillAll("before")
	w.r.put(Entry{Namespace: "ns", Key: "b", Parent: "a", Bound: true}, data(2, modelBlock))
	w.r.want("b", data(2, modelBlock))
	return w
}

// spillAll puts so much behind what is there that it lies in a file alone.
func (w *world) spillAll(behind string) {
	w.t.Helper()
	w.r.chain(behind, 0, 100, 1000)
	w.spill()
	w.close(false)
	w.open()
	w.spill()
}

// shortKeys are those of a scan that are no chain's.
func (w *world) shortKeys() []string {
	return slices.DeleteFunc(w.r.scanAll(), func(key string) bool { return len(key) > 1 })
}

// A bound name is hidden when the parent that lies in a file alone expires there.
func TestBoundToWhatExpiresInAFile(t *testing.T) {
	w := boundBelow(t, 3*time.Hour)
	w.late.Add(int64(4 * time.Hour))
	if w.r.Contains(t.Context(), "ns", "b") || len(w.shortKeys()) != 0 {
		t.Errorf("b is there: %v", w.shortKeys())
	}
	w.r.want("b", nil)
}

// A scan of files leaves out bound names whose parent is gone, wherever that was.
func TestScanOfBoundNamesInFiles(t *testing.T) {
	w := boundBelow(t, 0)
	w.spillAll("after")
	if got := w.shortKeys(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("it has %q", got)
	}
	w.r.Delete(t.Context(), "ns", "a")
	if got := w.shortKeys(); len(got) != 0 {
		t.Errorf("once the parent is deleted it has %q", got)
	}
}

// A name that is hidden when it is deleted does not come with its parent.
func TestDeleteOfAHiddenName(t *testing.T) {
	for _, below := range []bool{false, true} {
		w := boundBelow(t, 0)
		if below {
			w.spillAll("after")
		}
		w.r.Delete(t.Context(), "ns", "a")
		if w.r.Delete(t.Context(), "ns", "b") && !below {
			t.Error("it was visible")
		}
		w.r.put(ns("a"), data(3, modelBlock))
		if w.r.want("b", nil); w.r.Contains(t.Context(), "ns", "b") {
			t.Errorf("it is back, in files: %v", below)
		}
	}
}
