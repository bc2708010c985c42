package cascade

import (
	"context"
	"fmt"
	"testing"
)

func TestScanSeesEverythingThatStays(t *testing.T) {
	r := newRig(t, 16<<20, false)
	for i := range 500 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 100))
	}
	seen := map[string]bool{}
	cursor, step := uint64(0), 0
	for {
		cursor = r.Scan("ns", cursor, 7, func(k string) bool { seen[k] = true; return true })
		if cursor == 0 {
			break
		}
		r.Delete(context.Background(), "ns", fmt.Sprint(step*2)) // even ones go while the scan runs
		// and odd ones that are still to come get other bytes.
		r.put(ns(fmt.Sprint(step*2+1)), data(uint64(1000+step), 100))
		step++
	}
	for i := 1; i < 500; i += 2 {
		if !seen[fmt.Sprint(i)] {
			t.Errorf("%d stayed all the time and was not seen", i)
		}
	}
	if n := r.Clear(context.Background(), "ns", false); n != 500-step || r.Len("ns") != 0 {
		t.Errorf("Clear withdrew %d names, %d are left", n, r.Len("ns"))
	}
}
