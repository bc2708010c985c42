package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
	"cascadekv/internal/testing/fabrictest"
)

// serveVariable makes the test binary a rank that serves the suite until its
// standard input ends.
const serveVariable = "CASCADE_TCP_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) == "" {
		os.Exit(m.Run())
	}
	p, err := fabrictest.NewPeer()
	if err != nil {
		log.Fatal(err)
	}
	f, err := New(options(1, 1))
	if err != nil {
		log.Fatal(err)
	}
	if err := f.Serve(p); err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// pair starts two ranks, the other one in a process of its own.
func pair(b *testing.B) *Fabric {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveVariable+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	f, err := New(options(0, 1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(f.Close(), in.Close(), cmd.Wait()); err != nil {
			b.Error(err)
		}
	})
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: strings.TrimSpace(addr)})
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
			for range 5 { // pages, windows
				if err := f.Read(ctx, 1, src, m.Bytes()); err != nil {
					b.Fatal(err)
				}
			}
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

// BenchmarkReadMany is 32 callers that read blocks of 4 MiB from one peer.
func BenchmarkReadMany(b *testing.B) {
	const callers, size = 32, 4 << 20
	f := pair(b)
	m, err := arena.MapAnonymous(callers * size)
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
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f.Read(ctx, 1, src, m.Bytes()[c*size:(c+1)*size]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
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
