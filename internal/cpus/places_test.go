package cpus

import (
	"runtime"
	"testing"
)

func TestPlaces(t *testing.T) {
	p := semaphore{limit: func() int32 { return 2 }}
	for i := range 2 {
		if !p.tryAcquire() {
			t.Fatalf("%d of two places are kept, and one more can not be", i)
		}
	}
	if p.tryAcquire() {
		t.Error("three of two places are kept")
	}
	p.release()
	if !p.tryAcquire() {
		t.Error("a place that was left can not be kept again")
	}
	if n := sleepers.limit(); int(n) > runtime.GOMAXPROCS(0)/2 {
		t.Errorf("%d of %d places can be kept", n, runtime.GOMAXPROCS(0))
	}
}
