package sim

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/dht/fabric"
)

// parrot answers what it is asked, and counts.
type parrot struct{ calls int }

func (p *parrot) Answer(_ context.Context, _ fabric.Rank, req []byte) ([]byte, error) {
	p.calls++
	return append([]byte(nil), req...), nil
}

func (p *parrot) Hold(fabric.Source) (fabric.Hold, error) { return nil, fabric.ErrStale }

// flock joins n ranks, each with a parrot.
func flock(t *testing.T, w *World, n int) (fabrics []fabric.Fabric, parrots []*parrot) {
	t.Helper()
	for r := range n {
		f, p := w.Join(fabric.Rank(r), 1), &parrot{}
		if err := f.Serve(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		fabrics, parrots = append(fabrics, f), append(parrots, p)
	}
	return fabrics, parrots
}

// call calls with a deadline of a second, and tells how long it took.
func call(f fabric.Fabric, to fabric.Rank) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	start := time.Now()
	_, err := f.Call(ctx, to, []byte("hello"))
	return time.Since(start), err
}

// lost checks that a call was answered by nothing but its deadline.
func lost(t *testing.T, what string, took time.Duration, err error) {
	t.Helper()
	if !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
		t.Errorf("%s: %v after %v, want the deadline after 1s", what, err, took)
	}
}

func TestDelaysAreVirtualAndSeeded(t *testing.T) {
	run := func(seed uint64) (all []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			fs, _ := flock(t, New(Options{Seed: seed, MinDelay: 10 * time.Millisecond, MaxDelay: 30 * time.Millisecond}), 2)
			for range 20 {
				took, err := call(fs[0], 1)
				if err != nil || took < 20*time.Millisecond || took > 60*time.Millisecond {
					t.Errorf("a call took %v, error %v", took, err)
				}
				all = append(all, took)
			}
			if took, err := call(fs[0], 0); took != 0 || err != nil {
				t.Errorf("a call of itself took %v, error %v", took, err)
			}
		})
		return all
	}
	if a, b := run(1), run(1); !slices.Equal(a, b) {
		t.Errorf("one seed gave %v and %v", a, b)
	} else if slices.Equal(a, run(2)) {
		t.Error("two seeds gave the same delays")
	}
}

func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{Seed: 3, Loss: 0.25})
		fs, ps := flock(t, w, 2)
		good := 0
		for range 400 {
			took, err := call(fs[0], 1)
			if err == nil {
				good++
				continue
			}
			lost(t, "a lost message", took, err)
		}
		// Both directions must be good: 9 of 16; the request: 12 of 16.
		if good < 185 || good > 265 {
			t.Errorf("%d of 400 calls came through, want about 225", good)
		}
		if n := ps[1].calls; n < 265 || n > 335 {
			t.Errorf("%d of 400 requests came through, want about 300", n)
		}
	})
}

func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{})
		fs, ps := flock(t, w, 5)
		w.Partition([]fabric.Rank{0, 1}, []fabric.Rank{2})
		for _, pair := range [][2]fabric.Rank{{0, 2}, {2, 1}, {1, 3}, {4, 2}} {
			took, err := call(fs[pair[0]], pair[1])
			lost(t, "a call across the partition", took, err)
		}
		for _, pair := range [][2]fabric.Rank{{0, 1}, {1, 0}, {3, 4}, {2, 2}} {
			if took, err := call(fs[pair[0]], pair[1]); err != nil || took != 0 {
				t.Errorf("a call within a group took %v, error %v", took, err)
			}
		}
		w.Heal()
		if _, err := call(fs[0], 2); err != nil {
			t.Errorf("after Heal: %v", err)
		}
		if ps[2].calls != 2 {
			t.Errorf("rank 2 was called %d times, want 2", ps[2].calls)
		}
	})
}

func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{})
		fs, _ := flock(t, w, 2)
		w.Kill(1)
		took, err := call(fs[0], 1)
		lost(t, "a call of a killed rank", took, err)
		took, err = call(fs[1], 0)
		lost(t, "a call by a killed rank", took, err)

		again := w.Join(1, 2)
		defer again.Close()
		if err := again.Serve(&parrot{}); err != nil {
			t.Fatal(err)
		}
		if _, err = call(fs[0], 1); err != nil {
			t.Errorf("after the rank joined again: %v", err)
		}
		took, err = call(fs[1], 0)
		lost(t, "a call by the killed rank's old life", took, err)
	})
}

func TestStats(t *testing.T) {
	w := New(Options{})
	fs, _ := flock(t, w, 2)
	for range 3 {
		if _, err := call(fs[0], 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := call(fs[0], 0); err != nil {
		t.Fatal(err)
	}
	want := Stats{MessagesSent: 3, MessagesReceived: 3, BytesSent: 15, BytesReceived: 15}
	for r, got := range w.Stats() {
		if got != want {
			t.Errorf("%v: %+v, want %+v", r, got, want)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	w := New(Options{})
	f, g := w.Join(0, 1), w.Join(1, 1)
	if err := g.Serve(&parrot{}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	for b.Loop() {
		if _, err := f.Call(ctx, 1, []byte("hello")); err != nil {
			b.Fatal(err)
		}
	}
}
