package heapfloor

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	least = 100  // GOGC's default: what large heaps have
	most  = 1000 // of a heap that is next to nothing
)

var floor atomic.Uint64

// Set has the collector wait until so many bytes were allocated since it ran last, or
// as many as were live then if that is more. 0 ends that. Where GOGC is set, that stays.
func Set(bytes uint64) {
	if os.Getenv("GOGC") == "" && floor.Swap(bytes) == 0 && bytes > 0 {
		newTuner(least).tune()
	}
}

// tuner is garbage after each collection, and makes itself anew.
type tuner struct {
	percent int
	_       *tuner // without a pointer it shares memory with other small objects, and lives while one of them does
}

func newTuner(percent int) *tuner { return &tuner{percent: percent} }

func (t *tuner) tune() {
	bytes := floor.Load()
	percent := percentOf(bytes)
	if percent != t.percent { // it stops the world for a moment
		debug.SetGCPercent(percent)
	}
	if bytes > 0 {
		runtime.SetFinalizer(newTuner(percent), (*tuner).tune)
	}
}

// percentOf is GOGC for a floor and the heap as it was found last.
func percentOf(bytes uint64) int {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	n := live[0].Value.Uint64()
	if n == 0 {
		return least // nothing was collected yet
	}
	return int(min(max(bytes*100/n, least), most))
}
