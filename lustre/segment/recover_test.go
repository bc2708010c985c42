package segment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/lustre/segment/format"
)

// TestCutSegmentIsTold: a file that its rank has closed and that ends early was
// cut, and somebody should know; one whose rank was killed ends as it may.
func TestCutSegmentIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		killed bool
		keep   func(size int64) int64
		told   bool
	}{
		"closed, whole":         {false, func(n int64) int64 { return n }, false},
		"closed, footer cut":    {false, func(n int64) int64 { return n - 10 }, true},
		"closed, half":          {false, func(n int64) int64 { return n / 2 }, true},
		"closed, no frame left": {false, func(int64) int64 { return format.PageSize }, true},
		"killed":                {true, func(n int64) int64 { return n }, false},
		"killed in a write":     {true, func(n int64) int64 { return n - 5000 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, testOptions(dir, 1)) // of a process that is killed if it is not closed
			for i := range 6 {
				put(t, s, testItem(uint64(i+1), 9000))
			}
			if !c.killed {
				closeStore(t, s)
			}
			path := filepath.Join(dir, segmentPath(1, 0))
			st, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, c.keep(st.Size()))
			}
			if err != nil {
				t.Fatal(err)
			}
			told := openStore(t, testOptions(dir, 2)).Skipped()
			if (len(told) == 1) != c.told || len(told) > 0 && (!strings.Contains(told[0].Error(), path) || !strings.Contains(told[0].Error(), "cascade fsck")) {
				t.Errorf("told: %v", told)
			}
		})
	}
}
