package heapfloor

import (
	"runtime"
	"runtime/debug"
	"testing"
)

var sink []byte

// collections is how often the collector runs while so much garbage is made.
func collections(bytes int) uint32 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range bytes >> 10 {
		sink = make([]byte, 1<<10)
	}
	runtime.ReadMemStats(&after)
	return after.NumGC - before.NumGC
}

// A small heap is collected when the floor is reached; once it is large, as by default.
func TestGarbageGathers(t *testing.T) {
	t.Setenv("GOGC", "")
	defer func() { // until the last tuner has seen it
		Set(0)
		for range 3 {
			runtime.GC()
			collections(1 << 20)
		}
		debug.SetGCPercent(least)
	}()
	const floor, garbage = 32 << 20, 256 << 20
	runtime.GC()
	usual := collections(garbage)
	Set(floor)
	runtime.GC()
	if n := collections(garbage); n > usual/2 {
		t.Errorf("%d collections, %d without a floor", n, usual)
	}
	large := make([][]byte, 2*floor>>10)
	for i := range large {
		large[i] = make([]byte, 1<<10)
	}
	for range 3 { // a tuner is collected, and the next one is made
		runtime.GC()
		collections(floor)
	}
	if percent := debug.SetGCPercent(least); percent > 2*least {
		t.Errorf("GOGC is %d with a large heap", percent)
	}
	runtime.KeepAlive(large)
}

// Who sets GOGC has it.
func TestGOGCStays(t *testing.T) {
	t.Setenv("GOGC", "50")
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	Set(1 << 30)
	runtime.GC()
	if percent := debug.SetGCPercent(50); percent != 50 {
		t.Errorf("GOGC is %d", percent)
	}
}
