package cascade

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkNamesOfOneBlock puts one value under more and more names, as caches
// whose metadata is the same for all their blocks do.
func BenchmarkNamesOfOneBlock(b *testing.B) {
	for _, names := range []int{1000, 30_000} {
		b.Run(fmt.Sprint(names), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRig(b, 64<<20, true)
				value := []byte("the same for all")
				b.StartTimer()
				for i := range names {
					if _, err := r.Put(context.Background(), ns(fmt.Sprint(i)), value, nil); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				_ = r.Store.Close(context.Background())
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*names), "ns/name")
		})
	}
}
