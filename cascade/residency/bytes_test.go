package residency_test

import (
	"fmt"
	"slices"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// Several goroutines find the same bad bytes as one does, and those alone are withdrawn.
func TestCheckAll(t *testing.T) {
	for name, check := range map[string]func(views []*residency.View) []int{
		"one":     func(views []*residency.View) []int { return residency.CheckAll(t.Context(), views, true) },
		"several": func(views []*residency.View) []int { return residency.CheckWith(t.Context(), 4, views, true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := parttest.New(t)
			const n, size = 40, 4 << 10
			views := make([]*residency.View, n)
			var want []int
			for i := range n {
				if i%9 == 4 {
					continue // a miss
				}
				b := r.Put(parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), size))
				r.Mu.Lock()
				views[i] = r.PinFastestLocked(b)
				r.Mu.Unlock()
				if i%7 == 3 {
					views[i].Bytes()[i]++
					want = append(want, i)
				}
			}
			want = slices.DeleteFunc(want, func(i int) bool { return views[i] == nil })
			if bad := check(views); !slices.Equal(bad, want) {
				t.Errorf("bad: %v, want %v", bad, want)
			}
			for i, v := range views {
				if v == nil {
					continue
				}
				r.Mu.Lock()
				withdrawn := !v.Block().InAny()
				r.Mu.Unlock()
				if withdrawn != slices.Contains(want, i) {
					t.Errorf("block %d: withdrawn %v", i, withdrawn)
				}
				v.Release()
			}
		})
	}
}
