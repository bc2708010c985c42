package heapfloor

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
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

// end waits until no tuner is left.
func end() {
	Set(0)
	for range 3 { // one may have been at work already, and made the next
		done := make(chan struct{})
		runtime.SetFinalizer(new([64]byte), func(*[64]byte) { close(done) }) // one goroutine runs them all
		runtime.GC()
		<-done
	}
	debug.SetGCPercent(least)
}

// A small heap is collected when the floor is reached; once it is large, as by default.
func TestGarbageGathers(t *testing.T) {
	t.Setenv("GOGC", "")
	defer end()
	const floor, garbage = 32 << 20, 256 << 20
	Set(floor)
	runtime.GC()
	if n := collections(garbage); n > 2*garbage/floor { // without a floor some 64
		t.Errorf("%d collections", n)
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

// A tuner is collected although small objects that were made just before and after it are not.
func TestTunerBesideWhatLives(t *testing.T) {
	t.Setenv("GOGC", "")
	defer end()
	var live []*int64
	for range 100 {
		live = append(live, new(int64))
	}
	Set(32 << 20)
	for range 100 {
		live = append(live, new(int64))
	}
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for deadline := time.Now().Add(time.Minute); percent[0].Value.Kind() == metrics.KindBad || percent[0].Value.Uint64() == least; metrics.Read(percent) {
		if time.Now().After(deadline) {
			t.Fatal("no tuner runs")
		}
		runtime.GC() // it queues the tuner, which another goroutine runs
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(live)
}
