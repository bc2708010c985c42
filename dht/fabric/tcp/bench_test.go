package tcp

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/fabrictest"
	"cascadekv/internal/arena"
)

// pair starts two ranks that know each other.
func pair(b *testing.B) *Fabric {
	b.Helper()
	p, err := fabrictest.NewPeer()
	if err != nil {
		b.Fatal(err)
	}
	f, err := New(options(0, 1))
	if err != nil {
		b.Fatal(err)
	}
	g, err := New(options(1, 1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, c := range []interface{ Close() error }{f, g, p} {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	if err := g.Serve(p); err != nil {
		b.Fatal(err)
	}
	f.SetPeer(as(g))
	return f
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int64{4 << 10, 256 << 10, 4 << 20, 64 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := pair(b)
			m, err := arena.MapAnonymous(size)
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			src, err := fabrictest.Remote{Fabric: f, Rank: 1}.Put(ctx, size, 1)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			b.ReportAllocs()
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if err := f.Read(ctx, 1, src, m.Bytes()); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(size)/float64(took[len(took)/2]), "p50-GB/s")
		})
	}
}

func BenchmarkCall(b *testing.B) {
	f := pair(b)
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Call(ctx, fabric.Rank(1), []byte("e")); err != nil {
			b.Fatal(err)
		}
	}
}
