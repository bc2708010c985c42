package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// tears are what somebody does to a file of a running rank.
var tears = map[string]func(h *os.File, at, size int64) error{
	"cut":           func(h *os.File, at, _ int64) error { return h.Truncate(at) },
	"zeroed":        func(h *os.File, at, _ int64) error { _, err := h.WriteAt(make([]byte, 4096), at); return err },
	"cut and grown": func(h *os.File, at, size int64) error { return errors.Join(h.Truncate(at), h.Truncate(size)) },
}

// tear does so to a file, from a position on.
func tear(t *testing.T, dir, path string, at int64, how func(h *os.File, at, size int64) error) {
	t.Helper()
	h, err := os.OpenFile(filepath.Join(dir, path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := h.Stat()
	if err = errors.Join(err, how(h, at, st.Size()), h.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestTornWhileItRuns: of a file that somebody cuts, or makes holes in, while the store runs
// each block is right or a miss, each loss is counted once, what is lost can be put
// again, a merge moves nothing that is bad, and a restart has all of that, but for
// what lies in a file that it reports as damaged.
func TestTornWhileItRuns(t *testing.T) {
	for name, how := range tears {
		for _, sealed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", sealed ", sealed), func(t *testing.T) {
				for _, at := range []int64{0, 1, 4, 5, 9} {
					dir := t.TempDir()
					o := testOptions(dir, 1)
					o.SegmentBlocks = 6
					s := openStore(t, o)
					var items []tiers.Item
					for i, size := range []int{5000, 28, 700, 513, 9000, 4096} {
						items = append(items, testItem(uint64(i), size, testName(fmt.Sprint(i), uint64(i+1))))
						put(t, s, items[i])
					}
					if sealed {
						items = append(items, testItem(7, 600, testName("7", 8)))
						put(t, s, items[6])
					}
					tear(t, dir, segmentPath(1, 0), at*4096, how)
					right := rightOrAbsent(t, s, items...)
					if n := s.Health().Reads.Corrupt; n != uint64(len(items)-right) {
						t.Errorf("%d: %d losses are counted, of %d", at, n, len(items)-right)
					}
					if again := rightOrAbsent(t, s, items...); again != right {
						t.Errorf("%d: %d blocks, were %d", at, again, right)
					}
					for _, it := range items {
						if _, err := s.Pin(it.Info.ID); errors.Is(err, tiers.ErrNotFound) {
							put(t, s, it)
						}
					}
					wantBytes(t, s, items...)
					_, _ = s.Merge(t.Context(), 0, func([]block.ID) {}) // it may find its footer cut
					wantBytes(t, s, items...)
					crashed := t.TempDir()
					if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
						t.Fatal(err)
					}
					closeStore(t, s)
					for _, d := range []string{dir, crashed} {
						r := openStore(t, testOptions(d, 2))
						if n := rightOrAbsent(t, r, items...); n < len(items) && len(r.Skipped()) == 0 {
							t.Errorf("%d: %d of %d blocks after a restart, crashed: %v, and nothing is reported as damaged", at, n, len(items), d == crashed)
						}
						for key, id := range r.names {
							if _, ok := r.blocks[id]; !ok {
								t.Errorf("%d: the name %s is claimed, of a block that is not there", at, key)
							}
						}
						closeStore(t, r)
					}
				}
			})
		}
	}
}
