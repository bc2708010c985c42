package losslog

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

func TestLastLoss(t *testing.T) {
	l := New(1 << 20)
	if _, ok := l.Last(7); ok {
		t.Error("an empty log remembers a loss")
	}
	if _, all := l.Since(7); !all {
		t.Error("an empty log has forgotten a loss")
	}
	l.Add(7, Loss{Evicted, 1, time.Second})
	l.Add(8, Loss{Deleted, 0, 2 * time.Second})
	l.Add(7, Loss{Ended, 0, 3 * time.Second})
	got, ok := l.Last(7)
	if !ok || got.Reason != Ended || got.At > 3*time.Second || got.At < 3*time.Second-tick {
		t.Errorf("%+v %v, want the later one", got, ok)
	}
	if got, _ := l.Last(8); got.Reason != Deleted {
		t.Errorf("%+v of the other", got)
	}
	for r := Evicted; r <= RankDead; r++ {
		if r.String() == "" || r.String() == "unknown" {
			t.Errorf("reason %d has no word", r)
		}
	}
}

// TestForgets compares the log with one that forgets nothing: what it remembers is right, and
// what it may have forgotten is no younger than it says.
func TestForgets(t *testing.T) {
	l := New(1 << 20)
	const sets = 1 << 20 / ways / entryBytes
	rng := rand.New(rand.NewPCG(1, 2))
	last := map[uint64]Loss{}
	for i := range 4 * sets * ways {
		print := rng.Uint64() % (3 * sets * ways) * 0x9e3779b97f4a7c15
		loss := Loss{Reason(1 + rng.IntN(int(Unavailable))), uint16(i % 3), time.Duration(i) * tick}
		l.Add(print, loss)
		last[print] = loss
	}
	kept := 0
	for print, want := range last {
		got, ok := l.Last(print)
		since, all := l.Since(print)
		switch {
		case ok && got != want:
			t.Fatalf("%+v, want %+v", got, want)
		case !ok && (all || want.At > since):
			t.Fatalf("forgotten: %+v, though all since %v are remembered (%v)", want, since, all)
		case ok:
			kept++
		}
	}
	if kept < sets*ways*9/10 {
		t.Errorf("%d losses are remembered in %d places", kept, sets*ways)
	}
}

func TestSizeAndAllocations(t *testing.T) {
	l := New(1 << 20)
	l.Add(1, Loss{Reason: Evicted})
	if bytes := len(l.sets) * int(unsafe.Sizeof(set{})); bytes > 1<<20 || bytes < 1<<19 {
		t.Errorf("the table takes %d bytes", bytes)
	}
	i := uint64(0)
	if got := testing.AllocsPerRun(1000, func() { i++; l.Add(i*i, Loss{Reason: Evicted}) }); got != 0 {
		t.Errorf("%v allocations for a loss", got)
	}
}

func BenchmarkAdd(b *testing.B) {
	l := New(1 << 20)
	for i := range b.N {
		l.Add(uint64(i)*0x9e3779b97f4a7c15, Loss{Reason: Evicted, At: time.Duration(i)})
	}
}
